"""Automatic settings against every setting: three data sets, each with all numbers and kinds of workers, one step.

    computing   a transform of some milliseconds in Python and NumPy, with random numbers: processes, as many as cores
    waiting     a source that takes 5 ms to answer: more workers than cores
    in memory   samples that cost next to nothing: no workers

The step takes a fixed time on the device and nothing of the host, so that what differs is the feed. The best setting is
measured again before and after the automatic one: the winner of many measurements is lucky, and machines drift.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fulltilt.bench.feed.figures import Case, Rate, target
from fulltilt.bench.feed.limit import Plan, attempt
from fulltilt.bench.feed.measure import Batches, endless, measure
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say
from fulltilt.bench.target import Target
from fulltilt.feed import Feed, feed
from fulltilt.feed.datasets.leg import Kind
from fulltilt.feed.tuner import BEYOND_CORES

PART = "grid"
OF_BEST = target("of_best", 0.95)
OF_OWN = target("of_own", 0.98)
OWN_WORKERS = 4
"""What somebody may have set by hand, as many guides say; on a smaller machine, as many as cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A data set and a step."""

    key: str
    title: str
    dataset: Any
    batch: int
    step_seconds: float
    kinds: tuple[Kind, ...]
    """Those that give the same samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A point of the grid."""

    kind: Kind
    workers: int

    def __str__(self) -> str:
        return f"{self.workers} {self.kind}" if self.workers else "no workers"


class Computing(Dataset[Any]):
    """A random transform that holds the interpreter's lock for much of its time."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        values = np.full((3, 64, 64), number % 255, np.float32)
        for _ in range(60):
            values = np.roll(values, np.random.randint(4), axis=-1) * 0.9 + float(np.random.rand())
        return torch.from_numpy(values), sum(k & number for k in range(6000)) % 10


class Waiting(Dataset[Any]):
    """A throttled source of files."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        time.sleep(0.005)
        return torch.full((3, 64, 64), float(number)), number % 10


class InMemory(Dataset[Any]):
    """Windows of a signal, in a data set of somebody's own."""

    def __init__(self, count: int) -> None:
        self._windows, self._labels = torch.zeros(count, 24, 16), torch.arange(count) % 10

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self._windows[number], self._labels[number]


def workloads(scale: Scale) -> list[Workload]:
    return [
        Workload(
            key="computing",
            title="computing",
            dataset=Computing(),
            batch=16,
            step_seconds=0.012,
            kinds=("processes",),
        ),
        Workload(
            key="waiting",
            title="waiting",
            dataset=Waiting(),
            batch=16,
            step_seconds=0.008,
            kinds=("threads", "processes"),
        ),
        Workload(
            key="memory",
            title="in memory",
            dataset=InMemory(scale.windows),
            batch=32,
            step_seconds=0.0002,
            kinds=("threads", "processes"),
        ),
    ]


def settings(workload: Workload, cores: int, *, quick: bool) -> list[Setting]:
    """Every number up to the bound on small machines, a ladder of them on large ones; none at all once."""
    bound = BEYOND_CORES * cores
    rungs = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if n < bound]
    numbers = [1, bound] if quick else sorted({*rungs, bound} if bound > 8 else range(1, bound + 1))
    inline = [] if len(workload.kinds) == 1 else [Setting(kind="threads", workers=0)]
    return inline + [Setting(kind=kind, workers=n) for kind in workload.kinds for n in numbers]


def measure_grid(scale: Scale, *, cores: int, quick: bool, say: Say) -> list[Case]:
    return [case for workload in workloads(scale) for case in _Grid(workload, scale, cores).measure(quick, say)]


class _Grid:
    def __init__(self, workload: Workload, scale: Scale, cores: int) -> None:
        self._workload, self._scale, self._cores = workload, scale, cores
        self._own_workers = min(OWN_WORKERS, cores)
        self._step = step_of(workload.step_seconds, scale.device)

    def measure(self, quick: bool, say: Say) -> list[Case]:
        load = self._workload
        points = settings(load, self._cores, quick=quick)
        found = [
            attempt(
                PART, Plan(key=f"{load.key}_{s.kind}_{s.workers}", title=f"{load.title}: {s}", run=self._fixed(s)), say
            )
            for s in points
        ]
        rates = [0.0 if case.rate is None else case.rate.samples_per_second for case in found]
        best = points[rates.index(max(rates))]
        before = attempt(PART, self._plan("best_before", f"best, {best}, before", self._fixed(best)), say)
        auto = attempt(PART, self._plan("auto", "automatic", self._auto, OF_BEST), say)
        after = attempt(PART, self._plan("best_after", f"best, {best}, after", self._fixed(best)), say)
        own = attempt(PART, self._plan("own", f"DataLoader, {self._own_workers} workers", self._own), say)
        tuned = attempt(PART, self._plan("tuned", "the same, num_workers='auto'", self._tuned, OF_OWN), say)
        return [
            *found,
            before,
            replace(auto, of_best=_ratio(auto, before, after)),
            after,
            own,
            replace(tuned, of_own=_ratio(tuned, own)),
        ]

    def _plan(self, key: str, title: str, run: Callable[[], Rate], aim: Target | None = None) -> Plan:
        wanted = (aim,) if aim is not None and self._scale.grid_settle_seconds else ()
        return Plan(key=f"{self._workload.key}_{key}", title=f"{self._workload.title}: {title}", run=run, wanted=wanted)

    def _fixed(self, setting: Setting) -> Callable[[], Rate]:
        def run() -> Rate:
            with feed(
                self._workload.dataset,
                batch_size=self._workload.batch,
                device=self._scale.device,
                num_workers=setting.workers,
                worker_kind=setting.kind,
            ) as it:
                return self._rate(it, endless(it), note=None)

        return run

    def _auto(self) -> Rate:
        with feed(self._workload.dataset, batch_size=self._workload.batch, device=self._scale.device) as it:
            return self._settled(it)

    def _own(self) -> Rate:
        with feed(self._loader(), device=self._scale.device) as it:
            return self._rate(it, endless(it), note=None)

    def _tuned(self) -> Rate:
        with feed(self._loader(), num_workers="auto", device=self._scale.device) as it:
            return self._settled(it)

    def _loader(self) -> DataLoader[Any]:
        load = self._workload
        return DataLoader(load.dataset, load.batch, num_workers=self._own_workers, persistent_workers=True)

    def _settled(self, it: Any) -> Rate:
        """The rate of what was chosen; how it was chosen is said."""
        batches = endless(it)
        began = time.monotonic()
        while it.decision is None and time.monotonic() - began < self._scale.grid_settle_seconds:
            self._step(*next(batches))
        seconds = time.monotonic() - began
        chosen = "not settled" if it.decision is None else f"{it.decision.reason}, settled in {seconds:.0f} s"
        return self._rate(it, batches, note=f"{it.hosting.value.kind}; {chosen}")

    def _rate(self, it: Feed, batches: Batches, *, note: str | None) -> Rate:
        # As many as were ready before the first was asked for are not part of the rate.
        ahead = 2 * int(it.stats().get("workers", 0)) + 4
        rate = measure(
            batches,
            self._step,
            device=self._scale.device,
            warm=ahead if self._scale.grid_settle_seconds else 1,
            steps=1_000_000,
            seconds=self._scale.grid_seconds,
            feed=it,
        )
        return replace(rate, note=note)


def step_of(seconds: float, device: str) -> Callable[..., None]:
    """Occupies the device for so long; the host goes on, two steps ahead at most."""
    if device == "cpu":
        return lambda *_: time.sleep(seconds)
    cycles = int(seconds * _cycles_per_second())
    launched: deque[torch.cuda.Event] = deque()

    def step(*_: Any) -> None:
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        launched.append(event)
        if len(launched) > 2:
            launched.popleft().synchronize()

    return step


def _cycles_per_second() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
    begin.record()
    torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
    end.record()
    end.synchronize()
    return 1e8 / (float(begin.elapsed_time(end)) / 1e3)


def _ratio(case: Case, *others: Case) -> float | None:
    rates = [other.rate.samples_per_second for other in others if other.rate is not None]
    if case.rate is None or not rates:
        return None
    return case.rate.samples_per_second / (sum(rates) / len(rates))
