"""Results as plain values. Nothing runs here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fulltilt.bench.results import Result
from fulltilt.bench.target import Target, in_json

Figure = Literal["samples_per_second", "share", "times_loader", "of_best", "of_own", "of_alone"]
_OF = {
    "share": "the limit",
    "of_best": "the best of all settings",
    "of_own": "one's own setting",
    "of_alone": "the better of cores alone and GPU alone",
}
"""Figures that are shares, and of what."""
_UNITS = {"samples_per_second": " samples/s", "times_loader": " × DataLoader"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What one loop gave. What could not be taken is absent."""

    samples_per_second: float
    steps: int
    seconds: float
    wait_share: float | None = None
    """Share of the time in which the loop had no batch to go on with; a DataLoader does not tell."""
    cpu_cores: float | None = None
    """CPU time per second of this process and all that it started."""
    workers: int | None = None
    """Decoders or loader workers at the end."""
    bottleneck: str | None = None
    """Who is slowest, in the feed's own words."""
    note: str | None = None
    """What has to be known to read the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the result: ours, a peer's, or a limit."""

    part: str
    key: str
    title: str
    rate: Rate | None = None
    limit_per_second: float | None = None
    """The step's rate with its batch on the device already, the mean of just before and just after this case."""
    times_loader: float | None = None
    """The rate as a multiple of the fastest plain DataLoader's."""
    of_best: float | None = None
    """The rate as a share of the best of all settings'."""
    of_own: float | None = None
    """The rate as a share of what somebody's own setting gives."""
    of_alone: float | None = None
    """The rate as a share of the better of two: decoded by the cores alone, or by the GPU alone."""
    wanted: tuple[Target, ...] = ()
    problem: str | None = None
    """Why there is no rate."""

    @property
    def share(self) -> float | None:
        """Of the limit."""
        if self.rate is None or not self.limit_per_second:
            return None
        return self.rate.samples_per_second / self.limit_per_second

    @property
    def targets(self) -> tuple[Target, ...]:
        """With what was found."""
        rate = None if self.rate is None else self.rate.samples_per_second
        return tuple(
            target.given(rate if target.figure == "samples_per_second" else getattr(self, target.figure))
            for target in self.wanted
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "key": self.key,
            "title": self.title,
            **(asdict(self.rate) if self.rate else {}),
            "limit_per_second": self.limit_per_second,
            "share": self.share,
            "times_loader": self.times_loader,
            "of_best": self.of_best,
            "of_own": self.of_own,
            "of_alone": self.of_alone,
            "targets": in_json(self.targets),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedBench(Result):
    material: str
    """What the samples are, and where they lay."""
    cases: tuple[Case, ...] = ()


def target(figure: Figure, at_least: float) -> Target:
    """Of a figure of a case; a share is a fraction of 1."""
    if figure in _OF:
        return Target(figure=figure, wanted=at_least, percent=True, unit=f" of {_OF[figure]}")
    return Target(figure=figure, wanted=at_least, unit=_UNITS[figure])


def in_words(figure: Figure, value: float) -> str:
    """A figure with its unit."""
    near = figure == "of_alone"  # all of them are about as good: a tenth of a percent shows which is better
    return target(figure, value).say(value, digits=4 if near else 3)
