"""Results and targets as plain values: what was measured, what was wanted, whether it was met. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fulltilt.bench.ground import all_met
from fulltilt.bench.results import as_measured

Figure = Literal["samples_per_second", "share", "times_loader", "of_best", "of_own", "of_alone"]


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
class Target:
    """A figure and what it has to reach."""

    figure: Figure
    at_least: float
    """A share is a fraction of 1."""

    def holds(self, found: float | None) -> bool | None:
        """None where the figure was not measured: that is neither met nor missed."""
        return None if found is None else found >= self.at_least

    def __str__(self) -> str:
        return f"≥ {in_words(self.figure, self.at_least)}"


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
    targets: tuple[Target, ...] = ()
    problem: str | None = None
    """Why there is no rate."""

    @property
    def share(self) -> float | None:
        """Of the limit."""
        if self.rate is None or not self.limit_per_second:
            return None
        return self.rate.samples_per_second / self.limit_per_second

    def found(self, target: Target) -> float | None:
        if target.figure == "share":
            return self.share
        if target.figure != "samples_per_second":
            found: float | None = getattr(self, target.figure)
            return found
        return None if self.rate is None else self.rate.samples_per_second

    @property
    def met(self) -> bool | None:
        """All targets; None where there are none, or one could not be measured and the rest were met."""
        return all_met(target.holds(self.found(target)) for target in self.targets)

    def shortfalls(self) -> list[str]:
        """A line per target that was missed or not measured."""
        lines = []
        for target in self.targets:
            found = self.found(target)
            if found is None:
                lines.append(f"not measured: {self.title}: {target}" + (f" ({self.problem})" if self.problem else ""))
            elif not target.holds(found):
                lines.append(f"missed: {self.title}: {target}, found {in_words(target.figure, found)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        targets = [
            {"figure": target.figure, "at_least": target.at_least, "found": self.found(target),
             "met": target.holds(self.found(target))}
            for target in self.targets
        ]  # fmt: skip
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
            "target": targets or None,
            "met": self.met,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedBench:
    """Everything that was measured, and on what."""

    machine: Mapping[str, Any]
    date: str
    material: str
    """What the samples are, and where they lay."""
    cases: tuple[Case, ...] = ()
    seconds: float
    """The whole run, compiling and making photos included."""
    problem: str | None = None
    """Why there are no GPU figures."""

    def shortfalls(self) -> list[str]:
        return [line for case in self.cases for line in case.shortfalls()]

    def to_json(self) -> dict[str, Any]:
        flat: dict[str, Any] = as_measured(
            {
                "machine": dict(self.machine),
                "date": self.date,
                "material": self.material,
                "seconds": self.seconds,
                "cases": [case.to_json() for case in self.cases],
                "problem": self.problem,
            }
        )
        return flat


def in_words(figure: Figure, value: float) -> str:
    """A figure with its unit."""
    match figure:
        case "share":
            return f"{100 * value:.3g} % of the limit"
        case "times_loader":
            return f"{value:.3g} × DataLoader"
        case "of_best":
            return f"{100 * value:.3g} % of the best of all settings"
        case "of_own":
            return f"{100 * value:.3g} % of one's own setting"
        case "of_alone":
            return f"{100 * value:.4g} % of the better of cores alone and GPU alone"
        case _:
            return f"{value:,.0f} samples/s"
