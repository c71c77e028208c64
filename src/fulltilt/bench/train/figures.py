"""Results as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fulltilt.bench.results import Result
from fulltilt.bench.target import Target, Titled, in_json


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
    def targets(self) -> tuple[Target, ...]:
        if self.at_least is None:
            return ()
        several = self.at_least > 1
        unit = " times" if several else ""
        return (Target(figure="share", wanted=self.at_least, found=self.share, percent=not several, unit=unit),)

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
            "against": self.against,
            "targets": in_json(self.targets),
            **self.notes,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBench(Result):
    workloads: Mapping[str, str]
    """Key to title."""
    cases: tuple[Case, ...] = ()

    @property
    def targets(self) -> list[Titled]:
        return [(f"{case.workload}: {case.title}", target) for case in self.cases for target in case.targets]
