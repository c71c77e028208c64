"""How many decoders of videos, and how many threads each: found by decoding the clips themselves, before training.

One thread per decoder wastes nothing; several bring a batch sooner where few workers fit into memory or pictures are
large. Which of it pays depends on the files, so every split of the cores that the budget has for
loading is measured, for a moment and in a process of its own.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fulltilt.errors import FulltiltError, cause
from fulltilt.feed.datasets.shelf import begin_for, freeze_in_forks
from fulltilt.machine.budget import core_budget
from fulltilt.machine.decision import Decision

if TYPE_CHECKING:
    from fulltilt.feed.clips.clips import VideoClips

log = logging.getLogger("fulltilt.feed")

SECONDS = 0.4
"""How long each split decodes."""
WORTH = 1.05
"""More threads per decoder are taken where they are faster by so much: they make a worker hard to replace."""
_LIMIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """So many decoders, each with so many threads."""

    decoders: int
    threads: int


def possible_splits(cores: int, workers: int | None) -> list[Split]:
    """All cores in decoders of 1, 2, 4, … threads; with a given number of decoders as many threads as they can have."""
    found = []
    threads = 1
    while threads <= max(1, cores // (workers or 1)):
        found.append(Split(decoders=workers or max(1, cores // threads), threads=threads))
        threads *= 2
    return found


def choose(rates: Sequence[tuple[Split, float]]) -> Decision[Split]:
    """The fastest; of those that are about as fast, the one with the fewest threads per decoder."""
    best = max(rate for _, rate in rates)
    split, _ = min(((split, rate) for split, rate in rates if rate * WORTH >= best), key=lambda found: found[0].threads)
    tried = ", ".join(f"{one.decoders}×{one.threads}: {rate:,.1f}/s" for one, rate in rates)
    return Decision(
        value=split,
        reason=f"{split.decoders} decoders of {split.threads} threads give most clips (decoders×threads {tried})",
        evidence={"clips_per_second": [(one.decoders, one.threads, rate) for one, rate in rates]},
    )


def decoder_split(
    source: VideoClips, numbers: Sequence[int], *, cores: int, ranks: int, workers: int | None
) -> Decision[Split]:
    """What the source's decoders are to be; measured where its `threads` is "auto" and there is anything to choose.

    Args:
        cores: usable on this machine, by all ranks.
        workers: as many decoders and no other; None where their number is looked for.
    """
    budget = max(1, core_budget(cores, ranks=ranks).loading.value // ranks)
    if source.threads != "auto":
        threads = source.threads
        return Decision(
            value=Split(decoders=workers or max(1, budget // threads), threads=threads), reason="threads as asked for"
        )
    splits = possible_splits(budget, workers)
    if len(splits) == 1 or workers == 0 or source.has_cache:
        why = "pixels come from a cache" if source.has_cache else f"{budget} cores for loading leave no choice"
        return Decision(value=splits[0], reason=f"one thread per decoder: {why}")
    rates = _measured(source, list(numbers), splits)
    if isinstance(rates, str):
        log.info("decoders could not be measured: %s", rates)
        return Decision(value=splits[0], reason=f"one thread per decoder: not measured ({rates})")
    decision = choose(rates)
    log.info("%s", decision.reason)
    return decision


def clip_rate(source: VideoClips, numbers: Sequence[int], split: Split, seconds: float) -> float:
    """Clips per second that so many decoders give side by side; each has opened a video before."""
    source = source.with_threads(split.threads)
    following = itertools.cycle(numbers)
    ready = threading.Barrier(split.decoders)

    def work() -> tuple[int, float]:
        source[next(following)]
        ready.wait(_LIMIT_SECONDS)
        began, done = time.perf_counter(), 0
        while not done or time.perf_counter() - began < seconds:
            source[next(following)]  # one step of C code: threads can share it
            done += 1
        return done, time.perf_counter() - began

    with ThreadPoolExecutor(split.decoders) as pool:
        found = [future.result() for future in [pool.submit(work) for _ in range(split.decoders)]]
    return sum(done / elapsed for done, elapsed in found)


def _measured(source: VideoClips, numbers: list[int], splits: list[Split]) -> list[tuple[Split, float]] | str:
    """The rates, or why there are none. In a process of its own: decoders that were open must not be forked later."""
    context = multiprocessing.get_context("fork")
    freeze_in_forks()
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(sending, os.getpid(), source, numbers, splits), daemon=True)
    child.start()
    sending.close()
    try:
        if not receiving.poll(_LIMIT_SECONDS):
            return f"nothing came within {_LIMIT_SECONDS:g} s"
        found: list[tuple[Split, float]] | str = receiving.recv()
        return found
    except EOFError:
        child.join()
        return f"the process ended with {cause(child.exitcode or 0)}"
    finally:
        receiving.close()
        child.kill()
        child.join()
        child.close()


def _measure(sending: Any, trainer: int, source: VideoClips, numbers: list[int], splits: list[Split]) -> None:
    begin_for(trainer)
    torch.set_num_threads(1)
    try:
        sending.send([(split, clip_rate(source, numbers, split, SECONDS)) for split in splits])
    except (FulltiltError, OSError, threading.BrokenBarrierError) as error:
        sending.send(f"{type(error).__name__}: {error}")  # a file's: told again when its turn has come
