"""Results and targets as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fulltilt.bench.assist.phases import BalanceRun
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
    def met(self) -> bool:
        return self.ours_per_second >= min(TASKS_PER_SECOND, self.theirs_per_second / TIMES_SLOWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Very many tasks, whose results nobody keeps."""

    tasks: int
    seconds: float
    grown_bytes: int
    """Memory of the process at the end, less that after the first tenth."""

    @property
    def met(self) -> bool:
        return self.grown_bytes <= FLAT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistBench:
    """Everything that was measured, and on what."""

    machine: Mapping[str, Any]
    date: str
    seconds: float
    title: str = ""
    cases: tuple[Case, ...] = ()
    tasks: Tasks | None = None
    many: Many | None = None
    balance: BalanceRun | None = None
    problem: str | None = None
    """Why there are no GPU figures."""

    def targets(self) -> dict[str, bool | None]:
        """Met or not, by what is asked for; None where it could not be measured."""
        asked: dict[str, bool | None] = {
            f"{case.title} ≥ {100 * case.at_least:g} % of none": case.met
            for case in self.cases
            if case.at_least is not None
        }
        if self.tasks is not None:
            name = f"trivial tasks ≥ {TASKS_PER_SECOND:,.0f}/s or concurrent.futures / {TIMES_SLOWER:g}"
            asked[name] = self.tasks.met
        if self.many is not None:
            asked[f"{self.many.tasks:,} tasks within {FLAT_BYTES >> 20} MiB"] = self.many.met
        if self.balance is not None and self.problem is None:
            asked |= self.balance.targets()
        return asked

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "machine": {key: value for key, value in self.machine.items() if value is not None},
            "date": self.date,
            "seconds": round(self.seconds, 1),
        }
        if self.cases:
            lines = [case.to_json() for case in self.cases]
            cases = [{key: _short(value) for key, value in line.items() if value is not None} for line in lines]
            found |= {"workload": self.title, "cases": cases}
        if self.tasks is not None:
            found["tasks"] = {
                "tasks": self.tasks.tasks,
                "workers": self.tasks.workers,
                "tasks_per_second": round(self.tasks.ours_per_second),
                "concurrent_futures_tasks_per_second": round(self.tasks.theirs_per_second),
                "met": self.tasks.met,
            }
        if self.many is not None:
            found["many"] = {
                "tasks": self.many.tasks,
                "seconds": _short(self.many.seconds),
                "grown_bytes": self.many.grown_bytes,
                "met": self.many.met,
            }
        if self.balance is not None:
            found["balance"] = self.balance.to_json()
        return found | ({} if self.problem is None else {"problem": self.problem})


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
