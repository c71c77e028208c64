"""Where a loader's time goes, timed where its samples are made: in its workers, or in the training process.

fetch ─┬─ item ─┬─ read, decode          each moment counts for the innermost alone
       │        └─ transforms by name
       └─ collate                        totals ─► stages-LOADER-PID.json, a few times per second
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from fulltilt.launch.watch.draws import Looks
from fulltilt.measure.observation import Stage

if TYPE_CHECKING:
    from fulltilt.launch.watch.remembered import Remembered

WRITE_SECONDS = 0.25
LEAST_APART = 4
MOST_APART = 32
"""Batches between two that are timed, in the training process: there the timers run in the loop's own time."""
BATCH_COST_NS = 8_000
SWITCH_COST_NS = 1_500
"""What timing costs: for a batch, and for each change of stage in it. Two clocks are read, one by the kernel."""
MOST_SHARE = 0.005
"""Of the time in which batches are made, for timing them."""
LEAST_BATCHES = 4
"""Before one of them can be told from the others."""
FIRST = ("read", "decode")
LAST = ("item", "collate", "hand over", "pin")
"""Names that are ours; a transform keeps its own, and stands between them."""


def apart(switches: int, batch_ns: int) -> int:
    """One of how many batches is timed, where one takes so long and changes its stage so often."""
    cost_ns = BATCH_COST_NS + SWITCH_COST_NS * switches
    return min(MOST_APART, max(LEAST_APART, math.ceil(cost_ns / (MOST_SHARE * max(batch_ns, 1)))))


class Tally:
    """One loader's totals in this process."""

    def __init__(self) -> None:
        self.samples = 0
        self.spent: dict[str, list[int]] = {}
        """Name -> wall and CPU time, ns."""
        self._batches = self._batches_ns = self._slowest_ns = 0
        self._slowest: tuple[int, dict[str, list[int]]] = (0, {})
        """Samples of the slowest batch, and what was spent on it."""

    def add(self, name: str, wall_ns: int, cpu_ns: int) -> None:
        known = self.spent.get(name)
        if known is None:
            self.spent[name] = [wall_ns, cpu_ns]
        else:
            known[0] += wall_ns
            known[1] += cpu_ns

    def batch(self, samples: int, wall_ns: int, before: dict[str, list[int]]) -> None:
        """A batch was made, within the time that has come to `spent` since it was as `before`."""
        self._batches += 1
        self._batches_ns += wall_ns
        if wall_ns > self._slowest_ns:
            self._slowest_ns = wall_ns
            self._slowest = samples, _less(self.spent, before)

    def usual(self) -> tuple[int, dict[str, list[int]]]:
        """Samples, and what they took; without a batch that took longer than all others together.

        Where few are timed, a core that was taken away once would else be the loader's largest part.
        """
        if self._batches < LEAST_BATCHES or 2 * self._slowest_ns <= self._batches_ns:
            return self.samples, dict(self.spent)
        samples, spent = self._slowest
        return self.samples - samples, _less(self.spent, spent)


def _less(spent: dict[str, list[int]], other: dict[str, list[int]]) -> dict[str, list[int]]:
    none = [0, 0]
    return {
        name: [wall - other.get(name, none)[0], cpu - other.get(name, none)[1]]
        for name, (wall, cpu) in list(spent.items())
    }


class Stages:
    """The stack of stages of the thread that fetches."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.clear()

    def clear(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.looks: dict[str, Looks] = {}
        """By loader: whether its samples draw."""
        self.remembered: dict[str, Remembered] = {}
        """By loader: what its data set keeps of what it makes."""
        self.looking: Looks | None = None
        """At the batch that is made now."""
        self.queues: dict[int, str] = {}
        """A loader's queue of batches, by its id -> the loader: how its pinning thread is known."""
        self.in_worker = False
        self.thread = 0
        """The thread that fetches now; 0 outside of a fetch."""
        self._tally = Tally()
        self._stack: list[str] = []
        self._wall = self._cpu = 0
        self._written = 0.0
        self._began = self._switches = self._left = 0
        self._samples = 0
        self._before: dict[str, list[int]] = {}

    def tally(self, loader: str) -> Tally:
        return self.tallies.setdefault(loader, Tally())

    def skips(self) -> bool:
        """Whether a batch goes untimed; in a worker none does."""
        if self.in_worker:
            return False
        self._left -= 1
        return self._left > 0

    def begin(self, loader: str, count: int) -> None:
        """A batch of `count` samples is made in this thread, up to `end`."""
        tally = self.tallies.get(loader)
        self._tally = self.tally(loader) if tally is None else tally
        self._tally.samples += count
        self._samples = count
        self._before = _less(self._tally.spent, {})  # a thread of the queue may add to it meanwhile
        self._stack = ["item"]
        self._wall, self._cpu = time.perf_counter_ns(), time.thread_time_ns()
        self._began, self._switches = self._wall, 0
        self.thread = get_ident()

    def end(self, count: int = 0) -> None:
        """`count` are the batch's samples as the loop counts them, by its tensors; 0 where that can't be told. A data
        set may give whole batches, and a collate function put all nodes of several graphs into one tensor."""
        self._count()
        if count:
            self._tally.samples += count - self._samples
            self._samples = count
        self.thread = 0
        self._tally.batch(self._samples, self._wall - self._began, self._before)
        self._left = apart(self._switches, self._wall - self._began)

    def enter(self, name: str) -> None:
        self._count()
        self._stack.append(name)

    def leave(self) -> None:
        self._count()
        self._stack.pop()

    def _count(self) -> None:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        spent = self._tally.spent
        known = spent.get(self._stack[-1])
        if known is None:
            known = spent[self._stack[-1]] = [0, 0]
        known[0] += wall - self._wall
        known[1] += cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        self._switches += 1

    def write_now_and_then(self) -> None:
        """In a worker, which may be killed at any time; the training process writes when it is over."""
        if not self.in_worker:
            return
        now = time.monotonic()
        if now - self._written > WRITE_SECONDS:
            self._written = now
            self.write()

    def write(self) -> None:
        """As far as it can: where the disk is full, or the folder was tidied away, the script goes on."""
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        for loader in list(self.tallies.keys() | self.looks.keys()):
            tally, looks = self.tallies.get(loader, Tally()), self.looks.get(loader, Looks())
            file = self._out / f"stages-{loader}-{os.getpid()}.json"
            aside = file.with_suffix(".part")
            samples, spent = tally.usual()
            kept = self.remembered.get(loader)
            name = None if kept is None else kept.name
            aside.write_text(json.dumps({"samples": samples, "spent": spent, "draws": looks.draws, "remembers": name}))
            aside.replace(file)


class Timed:
    """A function that was put into a dataset in place of the user's; copied or pickled, it is the user's again."""

    def __init__(self, stages: Stages, name: str, function: Callable[..., Any]) -> None:
        self._stages = stages
        self._name = self.__name__ = name
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stages = self._stages
        if get_ident() != stages.thread:
            return self.function(*args, **kwargs)
        stages.enter(self._name)
        try:
            return self.function(*args, **kwargs)
        finally:
            stages.leave()

    def __reduce__(self) -> Any:
        return _same, (self.function,)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.function, name)


def timed_call(stages: Stages, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same as a function, since a method has to be one; pickled by name it is found again."""
    inner = Timed(stages, name, function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    return call


def _same(function: Any) -> Any:
    return function


@dataclass(slots=True)
class _Sum:
    samples: int = 0
    spent: dict[str, list[int]] = field(default_factory=dict)


def draws(out: Path, loader: str) -> bool | None:
    """Whether a loader's samples draw, in any of the processes that made them; None where nobody has looked."""
    found = [json.loads(file.read_text()).get("draws") for file in out.glob(f"stages-{loader}-*.json")]
    return None if all(one is None for one in found) else any(found)


def remembers(out: Path, loader: str) -> str | None:
    """What a loader's data set keeps of what it makes, in any of the processes."""
    found = (json.loads(file.read_text()).get("remembers") for file in out.glob(f"stages-{loader}-*.json"))
    return next((name for name in found if name is not None), None)


def read(out: Path, loader: str) -> tuple[Stage, ...]:
    """All processes' totals of a loader, per sample."""
    total = _Sum()
    for file in out.glob(f"stages-{loader}-*.json"):
        found = json.loads(file.read_text())
        total.samples += found["samples"]
        for name, (wall, cpu) in found["spent"].items():
            known = total.spent.setdefault(name, [0, 0])
            known[0] += wall
            known[1] += cpu
    if not total.samples:
        return ()
    own = [name for name in total.spent if name not in (*FIRST, *LAST)]
    ordered = [name for name in (*FIRST, *own, *LAST) if name in total.spent]
    return tuple(
        Stage(
            name=name,
            seconds=total.spent[name][0] / total.samples / 1e9,
            cpu_seconds=total.spent[name][1] / total.samples / 1e9,
        )
        for name in ordered
    )
