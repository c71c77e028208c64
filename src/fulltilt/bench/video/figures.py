"""Results as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fulltilt.bench.results import Result
from fulltilt.bench.target import Target, in_json

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
    def targets(self) -> tuple[Target, ...]:
        if self.at_least is None:
            return ()
        if self.unit == "clips":
            return (Target(figure="times", wanted=self.at_least, found=self.times, unit="×"),)
        return (Target(figure=f"{self.unit}_per_second", wanted=self.at_least, found=self.per_second, unit="/s"),)

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "key": self.key,
            "title": self.title,
            f"{self.unit}_per_second": self.per_second,
            "times": self.times,
            "targets": in_json(self.targets),
            **self.notes,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoBench(Result):
    video: str
    """What was decoded."""
    cases: tuple[Case, ...] = ()
