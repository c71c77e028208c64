"""What goes on on the machine while a command runs, sampled from outside of it."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any, Self

import psutil

from fulltilt.machine.cores import read_cores
from fulltilt.machine.memory import read_shared_memory
from fulltilt.machine.sample import GpuSample, Sample
from fulltilt.machine.sampling import Sampling
from fulltilt.measure.observation import Surroundings

SECONDS = 0.2
SLOW_SECONDS = 2.0
MOST_READINGS = 1000
ENOUGH_READINGS = 8
HOLDING_SHARE = 0.2
"""Clocks that were held down in more of the readings than this are worth a word."""


class Around:
    """Samples on a thread until it is left; `seen` are the figures of the first `MOST_READINGS`.

    Whoever wants all of them is given each by `on_sample`, its time in seconds from the command's start.
    """

    def __init__(self, pid: int, on_sample: Callable[[Sample], Any] | None = None) -> None:
        self._samples: list[Sample] = []
        self._on_sample = on_sample
        self._began = time.monotonic()
        most = MOST_READINGS if on_sample is None else None
        self._sampling = Sampling(self._add, SECONDS, most=most, pid=pid, slow_seconds=SLOW_SECONDS)

    def __enter__(self) -> Self:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampling.close()

    def _add(self, sample: Sample) -> None:
        late = self._sampling.zero - self._began  # opening the driver takes a while
        sample = replace(sample, t=sample.t + late)
        if len(self._samples) < MOST_READINGS:
            self._samples.append(sample)
        if self._on_sample is not None:
            self._on_sample(sample)

    def seen(
        self, device: str | None, *, begun: float = 0.0, since: float = 0.0, until: float = math.inf
    ) -> Surroundings:
        """`device` is the training's, as torch names it: `cuda:0`; its figures are taken from the GPU it used.

        `since` and `until`: when it trained, in seconds from the command's start; what memory grew by before is its
        libraries', and at its end nothing grows. Where there are few readings between, those from `begun` on are given,
        the first step's end; not so with a GPU, whose driver and libraries take the host's memory for seconds.
        """
        cores = read_cores().usable
        shared = read_shared_memory()
        late = self._samples[len(self._samples) // 3 :]  # what comes first is imports
        busy = [sample.cpu.util for sample in late if sample.cpu.util is not None]
        on_gpu = device is not None and device.startswith("cuda")
        gpus = _gpu(late) if on_gpu else []
        trained = [sample for sample in self._samples if since <= sample.t <= until]
        of_memory = trained
        if not on_gpu and len(trained) < ENOUGH_READINGS:
            of_memory = [sample for sample in self._samples if sample.t >= begun]
        memory = _memory(of_memory)
        last = gpus[-1] if gpus else None
        # A hundred steps of a GPU are over in less than a second, and what lies around them leaves it idle.
        used = [gpu.util for gpu in (_gpu(trained) if on_gpu else []) or gpus if gpu.util is not None]
        return Surroundings(
            cores=cores,
            cpu_share=fmean(busy) / 100 if busy else None,
            others_cores=_others_cores(late, cores),
            memory_bytes=tuple(memory),
            gpu=None if last is None else self._name_of(last.label),
            gpu_share=fmean(used) / 100 if used else None,
            gpu_memory_bytes=None if last is None else max((gpu.mem_used or 0) for gpu in gpus),
            gpu_memory_total_bytes=None if last is None else last.mem_total,
            other_processes=_others(gpus),
            throttled=_throttled(gpus),
            shm_bytes=None if shared is None else shared.total_bytes,
            shm_free_bytes=None if shared is None else shared.free_bytes,
        )

    def _name_of(self, label: str) -> str | None:
        """A GPU's name is in its first reading only."""
        return next((gpu.name for one in self._samples for gpu in one.gpus if gpu.label == label and gpu.name), None)


def _memory(samples: list[Sample]) -> list[int]:
    """Of the command and what it has started, with as many processes as it mostly has.

    Workers that start for an epoch bring the pages that they share with the others: that is no growth.
    """
    of_it = [one.process for one in samples if one.process is not None]
    found = [(one.count, one.ram_used) for one in of_it if one.ram_used is not None]
    usual = Counter(count for count, _ in found).most_common(1)
    return [used for count, used in found if count == usual[0][0]]


def _others_cores(samples: list[Sample], cores: int) -> float | None:
    """Cores that were busy with anything but the command."""
    found = [
        max(cores * sample.cpu.util / 100 - sample.process.cpu / 100, 0.0)
        for sample in samples
        if sample.cpu.util is not None and sample.process is not None and sample.process.cpu is not None
    ]
    return fmean(found) if found else None


def _gpu(samples: list[Sample]) -> list[GpuSample]:
    """The readings of the GPU that is busiest: with one rank that is the training's own."""
    by_label: dict[str, list[GpuSample]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            by_label.setdefault(gpu.label, []).append(gpu)
    return max(by_label.values(), key=lambda gpus: fmean(gpu.util or 0.0 for gpu in gpus), default=[])


def _others(gpus: list[GpuSample]) -> int:
    """Processes on the GPU that are not the command's; a container may not see whose they are."""
    counts = []
    for gpu in gpus:
        if gpu.processes is None:
            continue
        counts.append(sum(1 for pid in gpu.processes if not _is_ours(int(pid))))
    return max(counts, default=0)


def _is_ours(pid: int) -> bool:
    """This process or started by it, or a process id that means nothing here."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return any(one.pid == os.getpid() for one in (process, *process.parents()))
    return True


def _throttled(gpus: list[GpuSample]) -> str | None:
    told = [gpu.throttle for gpu in gpus if gpu.throttle is not None]  # a slow reading: not in every sample
    reasons = Counter(reason for throttle in told for reason in throttle)
    often = [reason for reason, count in reasons.items() if count > HOLDING_SHARE * len(told)]
    return ", ".join(often) or None
