"""Results and targets as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fulltilt.bench.results import as_measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the result. What could not be taken is absent."""

    workload: str
    key: str
    title: str
    reference: bool = False
    samples_per_second: float | None = None
    step_seconds: float | None = None
    spread: float | None = None
    """Between the slowest and the fastest round, as a share of the median."""
    setup_seconds: float | None = None
    """Before the first measured step: compiling, trials."""
    share: float | None = None
    """Of what it is measured against."""
    at_least: float | None = None
    against: str | None = None
    """The key of another case of the workload; None: the fastest that was optimised by hand."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def met(self) -> bool | None:
        """None where there is no target, or it could not be measured."""
        return None if self.at_least is None or self.share is None else self.share >= self.at_least

    def shortfall(self) -> str | None:
        if self.at_least is None or self.met:
            return None
        base = "the step by hand" if self.against is None else self.against
        wanted = f"{self.workload}: {self.title}: ≥ {100 * self.at_least:g} % of {base}"
        if self.share is None:
            return f"not measured: {wanted}" + (f" ({self.problem})" if self.problem else "")
        return f"missed: {wanted}, found {100 * self.share:.1f} %"

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "key": self.key,
            "title": self.title,
            "samples_per_second": self.samples_per_second,
            "step_seconds": self.step_seconds,
            "spread": self.spread,
            "setup_seconds": self.setup_seconds,
            "share": self.share,
            "at_least": self.at_least,
            "against": self.against,
            "met": self.met,
            **self.notes,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBench:
    """Everything that was measured, and on what."""

    machine: Mapping[str, Any]
    date: str
    workloads: Mapping[str, str]
    """Key to title."""
    cases: tuple[Case, ...]
    seconds: float
    problem: str | None = None
    """Why there are no GPU figures."""

    def shortfalls(self) -> list[str]:
        return [line for line in (case.shortfall() for case in self.cases) if line is not None]

    def to_json(self) -> dict[str, Any]:
        flat: dict[str, Any] = as_measured(
            {
                "machine": dict(self.machine),
                "date": self.date,
                "workloads": dict(self.workloads),
                "seconds": self.seconds,
                "cases": [case.to_json() for case in self.cases],
                "problem": self.problem,
            }
        )
        return flat
