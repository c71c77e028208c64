"""A cause, with its evidence and what its fix would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fulltilt.measure.observation import Observation, Place

Level = Literal["exact", "numeric", "semantic"]
"""Same order and maths; losses within the run-to-run band; another training (batch size, augmentation)."""


About = Literal["feeding", "between", "step"]
"""What keeps the script below its step's limit; what takes time from the steps; what would raise the limit itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    cause: str
    """A short name that stays: `loader-workers`, `hidden-sync`, …; the table in `thresholds.py` has them all."""
    title: str
    """One sentence in the user's terms."""
    evidence: tuple[str, ...]
    """Sentences with figures."""
    gain: float | None
    """Predicted: samples per second afterwards, divided by now's, minus one. None where it can't be predicted."""
    limit_gain: float | None = None
    """By how much it would raise the step's own limit. A script that waits for its loader gains nothing by that now
    (`gain`), but once it is fed it does."""
    fix: str
    """What to do, in the user's terms."""
    place: Place | None = None
    diff: str | None = None
    """The edit to make by hand, as a unified diff, where the line is known."""
    level: Level = "exact"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `fulltilt run` tries for it, from outside; empty where only the user can mend it. See launch/settings.py."""
    about: About = "feeding"
    seconds: float | None = None
    """Of each step, what the cause costs on the host's clock, where it could be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Measured ceilings, in samples per second (in steps per second where samples can't be counted)."""

    step: float | None
    """The script's own step, with its batches on the device already."""
    loader: float | None
    """Its training loader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that is known about why a script is as fast as it is."""

    observation: Observation
    """The script as it is, rank 0."""
    ranks: tuple[Observation, ...] = ()
    """All ranks, where there are several."""
    limits: Limits
    headroom: float | None
    """1 − actual / limit of the step: all that feeding better can ever win. None where that can't be told."""
    findings: tuple[Finding, ...]
    """Ranked: the greatest gain first; those whose gain can't be predicted at the end."""
    verdict: str
    """One sentence: `no headroom …`, or what binds."""
    notes: tuple[str, ...] = ()
    """What should be known about these figures; what could not be seen is in the observation's."""
    unsettled: bool = False
    """The machine was so much busier while the script was watched than while its limit was measured that both say
    little about each other."""

    def sections(self) -> list[tuple[str, list[Finding]]]:
        """The findings as they are shown, under what they are about; that of the first finding comes first."""
        step = [finding for finding in self.findings if finding.about == "step"]
        others = [finding for finding in self.findings if finding.about != "step"]
        both = [("What holds it up", others), ("What would make the step itself faster", step)]
        if step and self.findings[0] is step[0]:
            both.reverse()
        return [(title, findings) for title, findings in both if findings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings that were put upon the script for a few dozen steps, and what became of them."""

    title: str
    """What was tried, in the user's terms: `8 workers instead of 2`."""
    settings: Mapping[str, Any]
    """Names of launch/settings.py."""
    samples_per_second: float | None
    """None where the trial did not end well; the reason says how."""
    kept: bool
    reason: str
    """Why it was kept or not: `+31 %`, `within noise`, `losses left the band at step 12`."""
    noise: float | None = None
    """Relative spread of the figure, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The script with the plan."""

    samples_per_second: float | None
    settings: Mapping[str, Any]
    observation: Observation | None = None
    before: float | None = None
    """The script as it is, measured beside it; the diagnosis' own figure may stem from a machine that was less busy."""
    limit: float | None = None
    """The step's limit with the plan, where it was measured again."""
    verified: str = ""
    """One sentence about the losses before and after."""
    remaining: str | None = None
    """What keeps it below that limit; None where it is near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurves:
    """Losses of the first steps, same seed, before and after."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    band: tuple[float, ...] = ()
    """How far two runs as they are lie apart at each step (or one figure for all); empty where it was not measured."""
