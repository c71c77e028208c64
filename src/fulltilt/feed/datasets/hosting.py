"""Who makes a data set's batches: processes or threads, how many, how far ahead, and how batches are handed over.

Pure: from what was seen of the data set and what the machine has free to a decision, before anything is started.

    batches alive = workers × depth, twice that while the number of workers changes, and those on their way to the loop
    memory        = batches alive × batch bytes + what each process takes of its own      ≤ half of what is free
    /dev/shm      = batches alive × batch bytes                                           ≤ 0.8 of what is free there
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fulltilt.errors import InputError
from fulltilt.feed.datasets.leg import Kind, Transport
from fulltilt.feed.datasets.probing import Probed
from fulltilt.feed.tuner import BEYOND_CORES
from fulltilt.machine.decision import Decision
from fulltilt.words import memory_size

DEPTH = 2
"""Batches per worker, unless told or memory is short."""
MOVING = 4
"""Batches on their way beside those that are ahead on the device: two queued, one being fetched, one with the loop."""
PROCESS_BYTES = 64 << 20
"""What a worker process takes of its own, about."""
MEMORY_SHARE = 0.5
SHM_SHARE = 0.8
THREADED = 0.8
"""Threads are taken where they bring this share of what as many cores could: the lock is mostly released."""
CHEAP_BATCH_SECONDS = 1e-3
"""A batch that is made about as fast as it is handed over between processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What this rank may take."""

    cores: int
    memory_bytes: int
    shm_bytes: int | None
    """None where there is no /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """How batches are made."""

    kind: Kind
    workers: int
    """To begin with."""
    most: int
    """As many as are tried where they compute all the time."""
    beyond: int
    """As many as are tried where they wait."""
    least: int
    also: tuple[int, ...]
    """Numbers that are worth a trial in any case."""
    depth: int
    transport: Transport


def host(
    probed: Probed,
    free: Free,
    *,
    batch_size: int,
    kind: Kind | Literal["auto"] = "auto",
    workers: int | None = None,
    own: int | None = None,
    depth: int | None = None,
    ahead: int = 1,
) -> Decision[Hosting]:
    """
    Args:
        workers: as many and no other; None looks for the number.
        own: the number to begin with, where somebody has set it before.
        depth: None leaves it to us.
        ahead: batches on the device beside the one in use.
    """
    kind, why = _kind(probed, kind)
    tuned = workers is None
    in_process = not probed.draws and probed.repeatable
    first, reason = _first(probed, free, workers=workers, own=own, batch_size=batch_size, in_process=in_process)
    most = max(first, free.cores) if tuned else first
    beyond = max(most, BEYOND_CORES * free.cores) if tuned else first
    reasons = [why, reason]
    batch_bytes = None if probed.bytes_per_sample is None else int(probed.bytes_per_sample * batch_size)
    transport: Transport = "shm"
    least = 0 if in_process or own == 0 else min(1, first)
    chosen_depth = DEPTH if depth is None else depth
    if batch_bytes is not None and (first or tuned):
        room = _Room(batch_bytes=batch_bytes, held=ahead + 1 + MOVING, legs=2 if tuned else 1, kind=kind)
        budget = int(free.memory_bytes * MEMORY_SHARE)
        beyond, chosen_depth, cut = room.fitting(beyond, chosen_depth, budget, shrink=depth is None)
        if beyond < 1 and least == 0:
            first = most = beyond = 0
        elif beyond < 1:
            raise InputError(
                f"one worker with a batch of {memory_size(batch_bytes)} and what is on its way take "
                f"{memory_size(room.bytes(1, 1))}, half of the free memory is {memory_size(budget)}: "
                "lower batch_size, or set num_workers=0"
            )
        first, most = min(first, beyond), min(most, beyond)
        if cut:
            reasons.append(
                f"{cut} of {memory_size(batch_bytes)} a batch fit into half of the "
                f"{memory_size(free.memory_bytes)} free"
            )
        shm = 0 if free.shm_bytes is None else int(free.shm_bytes * SHM_SHARE)
        if kind == "processes" and first and room.in_transit(most, chosen_depth) > shm:
            transport = "memfd"
            reasons.append(
                f"batches of up to {most} workers take {memory_size(room.in_transit(most, chosen_depth))}, /dev/shm "
                f"has {memory_size(free.shm_bytes or 0)} free: they are handed over in anonymous memory"
            )
    return Decision(
        value=Hosting(
            kind=kind,
            workers=first,
            most=most,
            beyond=beyond,
            least=min(least, first),
            also=(0,) if in_process and _batch_seconds(probed, batch_size) < CHEAP_BATCH_SECONDS else (),
            depth=chosen_depth,
            transport=transport,
        ),
        reason="; ".join(reasons),
        evidence={"probed": probed, "free": free},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Bytes that workers need."""

    batch_bytes: int
    held: int
    """Batches on their way to the loop."""
    legs: int
    """How many sets of workers can be there at once."""
    kind: Kind

    def in_transit(self, workers: int, depth: int) -> int:
        return (self.legs * workers * depth + self.held) * self.batch_bytes

    def bytes(self, workers: int, depth: int) -> int:
        own = PROCESS_BYTES if self.kind == "processes" else 0
        return self.in_transit(workers, depth) + self.legs * workers * own

    def fitting(self, workers: int, depth: int, budget: int, *, shrink: bool) -> tuple[int, int, str | None]:
        """Workers and depth within a budget, and in words what had to give way: first the depth, then workers."""
        if self.bytes(workers, depth) <= budget:
            return workers, depth, None
        if shrink:
            depth = 1
        fitting = workers
        while fitting and self.bytes(fitting, depth) > budget:
            fitting -= 1
        return fitting, depth, f"at most {fitting} workers with {depth} batches each"


def _kind(probed: Probed, wished: Kind | Literal["auto"]) -> tuple[Kind, str]:
    if wished != "auto":
        return wished, f"{wished}, as asked for"
    if probed.draws:
        return "processes", f"processes: samples draw from {' and '.join(probed.draws)}, which threads would share"
    if probed.speedup is None:
        return "processes", f"processes: {probed.problem or 'threads were not tried'}"
    figures = f"{probed.threads} threads were {probed.speedup:.1f} times as fast as one"
    if not probed.repeatable:
        return "processes", "processes: samples were not the same when threads fetched them"
    if probed.speedup >= THREADED * probed.threads:
        return "threads", f"threads: {figures}, so the interpreter's lock is mostly released"
    return "processes", f"processes: {figures}"


def _first(
    probed: Probed, free: Free, *, workers: int | None, own: int | None, batch_size: int, in_process: bool
) -> tuple[int, str]:
    """The number to begin with."""
    if workers is not None:
        return workers, f"{workers} workers, as asked for"
    if own is not None:
        return own, f"begins with {own} workers, as set before"
    seconds = _batch_seconds(probed, batch_size)
    if in_process and seconds < CHEAP_BATCH_SECONDS:
        return 0, f"begins without workers: a batch takes {seconds * 1e6:.0f} µs, about as long as to hand it over"
    return max(1, free.cores - 1), "begins with every usable core but one"


def _batch_seconds(probed: Probed, batch_size: int) -> float:
    return math.inf if probed.seconds_per_sample is None else probed.seconds_per_sample * batch_size
