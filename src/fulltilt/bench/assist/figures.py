"""Results as plain values. Nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fulltilt.bench.assist.phases import BalanceRun
from fulltilt.bench.results import Result, as_measured
from fulltilt.bench.target import Target, Titled, in_json
from fulltilt.bench.train.figures import Case

PARTS = {"tasks": ("tasks", "many"), "metrics": ("cases", "workload"), "balance": ("balance",)}
"""What can be run by itself, and where it stands in the JSON."""
BESIDE_AT_LEAST = 0.98
"""Of training without metrics."""
TASKS_PER_SECOND, TIMES_SLOWER = 100_000.0, 1.5
"""So many tasks a second, or what concurrent.futures does divided by so much, whichever is lower."""
FLAT_BYTES = 64 << 20
"""A million tasks may leave that much more memory in use: what allocators keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Trivial tasks, submitted one by one and all asked for."""

    tasks: int
    ours_per_second: float
    theirs_per_second: float
    """concurrent.futures, in the same minute, with as many threads."""
    workers: int

    @property
    def target(self) -> Target:
        wanted = min(TASKS_PER_SECOND, self.theirs_per_second / TIMES_SLOWER)
        return Target(figure="tasks_per_second", wanted=wanted, found=self.ours_per_second, unit="/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Very many tasks, whose results nobody keeps."""

    tasks: int
    seconds: float
    grown_bytes: int
    """Memory of the process at the end, less that after the first tenth."""

    @property
    def target(self) -> Target:
        return Target(figure="grown_bytes", wanted=FLAT_BYTES, found=self.grown_bytes, at_most=True, unit=" bytes more")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistBench(Result):
    title: str = ""
    cases: tuple[Case, ...] = ()
    tasks: Tasks | None = None
    many: Many | None = None
    balance: BalanceRun | None = None

    @property
    def targets(self) -> list[Titled]:
        found = [(case.title, target) for case in self.cases for target in case.targets]
        if self.tasks is not None:
            found.append(("trivial tasks", self.tasks.target))
        if self.many is not None:
            found.append((f"{self.many.tasks:,} tasks", self.many.target))
        if self.balance is not None and self.problem is None:
            found += self.balance.targets
        return found

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "machine": {key: value for key, value in self.machine.items() if value is not None},
            "date": self.date,
            "seconds": round(self.seconds, 1),
        }
        if self.cases:
            found |= {"workload": self.title, "cases": as_measured([case.to_json() for case in self.cases])}
        if self.tasks is not None:
            found["tasks"] = {
                "tasks": self.tasks.tasks,
                "workers": self.tasks.workers,
                "tasks_per_second": round(self.tasks.ours_per_second),
                "concurrent_futures_tasks_per_second": round(self.tasks.theirs_per_second),
                "targets": as_measured(in_json([self.tasks.target])),
            }
        if self.many is not None:
            found["many"] = {
                "tasks": self.many.tasks,
                "seconds": as_measured(self.many.seconds),
                "grown_bytes": self.many.grown_bytes,
                "targets": in_json([self.many.target]),
            }
        if self.balance is not None:
            found["balance"] = self.balance.to_json()
        return found | ({} if self.problem is None else {"problem": self.problem})
