"""Rates of a loop, on the GPU's clock where there is one; what it cost the CPU; and cores taken away from it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch

from fulltilt.bench.feed.figures import Rate
from fulltilt.feed import Feed

_LEAST_STEPS = 3

Batches = Iterator[Any]
Train = Callable[..., None]


def measure(
    batches: Batches,
    step: Train | None,
    *,
    device: str,
    warm: int,
    steps: int,
    seconds: float,
    feed: Feed | None = None,
    workers: int | None = None,
) -> Rate:
    """The rate of `steps` steps, or of as many as begin within `seconds`; None for `step` only takes the batches.

    Nothing waits for the device between warming up and measuring: a pause would let the feed run ahead, and what lay
    ready would count as if it had been made in time.
    """
    for _ in range(warm // 2):
        _run(step, next(batches))
    cpu, cpu_began = tree_cpu_seconds(), time.perf_counter()  # takes a moment, which the rest of the warm-up makes good
    for _ in range(warm - warm // 2):
        _run(step, next(batches))
    waited = _waits(feed)
    clock, began = _Clock(device), time.perf_counter()
    taken = samples = 0
    while taken < steps and (taken < _LEAST_STEPS or time.perf_counter() - began < seconds):
        batch = next(batches)
        samples += len(batch[0])
        taken += 1
        _run(step, batch)
    clock.stop()
    host_seconds = time.perf_counter() - began
    waited = _waits(feed) - waited
    elapsed = clock.seconds()
    cpu, cpu_seconds = tree_cpu_seconds() - cpu, time.perf_counter() - cpu_began
    stats = {} if feed is None else feed.stats()
    return Rate(
        samples_per_second=samples / elapsed,
        steps=taken,
        seconds=elapsed,
        wait_share=None if feed is None else waited / host_seconds,
        cpu_cores=cpu / cpu_seconds,
        workers=stats.get("workers", workers),
        bottleneck=stats.get("bottleneck"),
    )


def endless(source: Iterable[Any]) -> Batches:
    """Epoch after epoch."""
    while True:
        yield from source


def tree_cpu_seconds() -> float:
    """CPU time of this process and all under it; what has ended counts with the one that waited for it."""
    own = psutil.Process()
    spent = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            spent += sum(process.cpu_times()[:4])  # user, system, and both of ended children
    return spent


@contextmanager
def confined(cores: int) -> Iterator[None]:
    """Only so many cores for every thread of this process and all that it starts; as before afterwards.

    torch has no more threads than that, either: on one core two of them wait for each other at every operation.
    """
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    _set_affinity(set(sorted(before)[:cores]))
    torch.set_num_threads(min(threads, cores))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _set_affinity(before)


def _set_affinity(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)  # first: what this thread starts from now on is born with it
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # threads come and go
            os.sched_setaffinity(int(thread), cores)


class _Clock:
    """Seconds from when it was made to when it was stopped: between CUDA events in the step's stream, or the host's."""

    def __init__(self, device: str) -> None:
        self._mark = time.perf_counter if device == "cpu" else _event
        self._began: Any = self._mark()
        self._ended: Any = None

    def stop(self) -> None:
        """Does not wait."""
        self._ended = self._mark()

    def seconds(self) -> float:
        """Waits until all that was launched before the stop is done."""
        if isinstance(self._began, float):
            return float(self._ended - self._began)
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _run(step: Train | None, batch: Any) -> None:
    if step is not None:
        step(*batch)


def _waits(feed: Feed | None) -> float:
    """Seconds that the feed has had its loop wait, so far."""
    stats = {} if feed is None else feed.stats()
    return float(stats.get("wait_seconds_per_batch", 0.0) * stats.get("batches", 0.0))
