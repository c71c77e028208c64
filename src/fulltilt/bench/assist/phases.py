"""What the balance did while cores came and went, as plain values. Nothing runs here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fulltilt.bench.target import Target, Titled, in_json

FOLLOWS_SECONDS = 10.0
KEEPS_AT_LEAST = 0.95
"""Of the best fixed share, when it has settled; of its own rate before, when the cores are back."""
EARLY_AT_LEAST = 0.9
"""Of the best fixed share, after `FOLLOWS_SECONDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What training did in one state of the machine."""

    cores: int
    samples_per_second: float
    """When it had settled."""
    gpu_share: float
    workers: int
    settled_seconds: float
    """Until nothing was looked for any more."""
    early_samples_per_second: float
    """In the second before `FOLLOWS_SECONDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRun:
    """All cores, half of them, all again; and fixed shares with half of them."""

    before: Phase
    taken: Phase
    back: Phase
    fixed: dict[float, float]
    """Samples a second with half of the cores, by the GPU's share."""

    @property
    def targets(self) -> list[Titled]:
        best, before = max(self.fixed.values()), self.before.samples_per_second
        taken, early, back = (
            self.taken.samples_per_second / best,
            self.taken.early_samples_per_second / best,
            self.back.samples_per_second / before,
        )
        of_best, of_before = " of the best fixed share", " of before"
        return [
            ("half of the cores", _share("taken", KEEPS_AT_LEAST, taken, of_best)),
            (f"half of the cores, after {FOLLOWS_SECONDS:g} s", _share("early", EARLY_AT_LEAST, early, of_best)),
            ("cores are back", _share("back", KEEPS_AT_LEAST, back, of_before)),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: asdict(getattr(self, name)) for name in ("before", "taken", "back")},
            "fixed": {f"{share:g}": rate for share, rate in self.fixed.items()},
            "targets": in_json(target for _, target in self.targets),
        }

    def lines(self) -> list[str]:
        said = [
            f"{name}: {phase.samples_per_second:,.0f} samples/s on {phase.cores} cores, {phase.workers} decoders, "
            f"{phase.gpu_share:.0%} by the GPU, settled in {phase.settled_seconds:.0f} s; "
            f"{phase.early_samples_per_second:,.0f}/s after {FOLLOWS_SECONDS:g} s"
            for name, phase in (("before", self.before), ("half taken", self.taken), ("back", self.back))
        ]
        fixed = ", ".join(f"{share:.0%}: {rate:,.0f}/s" for share, rate in self.fixed.items())
        return [*said, f"half taken, fixed shares: {fixed}"]


def _share(figure: str, wanted: float, found: float, of: str) -> Target:
    return Target(figure=figure, wanted=wanted, found=found, percent=True, unit=of)
