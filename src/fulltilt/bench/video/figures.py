"""Results and targets as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PARTS = ("cpu", "light", "nvdec", "both", "clips", "train", "long")
CPU_AT_LEAST, NVDEC_AT_LEAST, BOTH_AT_LEAST = 3000.0, 2500.0, 5000.0
"""Frames of 720p a second as RGB: in host memory, on the device."""
TIMES_LOADER = 3.0
"""Clips, against a DataLoader with as many workers."""
OF_LIMIT = 0.95
"""Training from cached clips, of what the step does with a batch that is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the result. What could not be taken is absent."""

    part: str
    key: str
    title: str
    per_second: float | None = None
    unit: str = "frames"
    times: float | None = None
    """As fast as what it is compared with."""
    at_least: float | None = None
    """Per second, or times where it is compared."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def met(self) -> bool | None:
        """None where there is no target, or it could not be measured."""
        found = self.times if self.unit == "clips" else self.per_second
        return None if self.at_least is None or found is None else found >= self.at_least

    def target(self) -> str:
        if self.at_least is None:
            return ""
        wanted = f"{self.at_least:g} times" if self.unit == "clips" else f"{self.at_least:,.0f} {self.unit}/s"
        return f"{self.title} ≥ {wanted}"

    def to_json(self) -> dict[str, Any]:
        found = {
            "part": self.part,
            "key": self.key,
            "title": self.title,
            f"{self.unit}_per_second": _short(self.per_second),
            "times": _short(self.times),
            "at_least": self.at_least,
            "met": self.met,
            **self.notes,
            "problem": self.problem,
        }
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoBench:
    """Everything that was measured, and on what."""

    machine: Mapping[str, Any]
    date: str
    video: str
    """What was decoded."""
    cases: tuple[Case, ...]
    seconds: float
    problem: str | None = None
    """Why there are no targets."""

    def targets(self) -> dict[str, bool | None]:
        """Met or not, by what is asked for; None where it could not be measured."""
        return {case.target(): case.met for case in self.cases if case.at_least is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": {key: value for key, value in self.machine.items() if value is not None},
            "date": self.date,
            "seconds": round(self.seconds, 1),
            "video": self.video,
            "cases": [case.to_json() for case in self.cases],
            **({} if self.problem is None else {"problem": self.problem}),
        }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
