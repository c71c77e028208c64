"""Whether a script trains as well as before, where its draws or its batches are others. Pure.

No loss has a twin then, and none can be compared by itself. The rule: three runs, two as the script is, from different
seeds, and one with the settings. Compared are means over the first and over the second half of the steps. How far they
lie apart by chance is seen twice: between the two seeds, and in how much losses jump from step to step. With the
settings they may lie off by `_TIMES` the larger of the two, plus `_FLOOR` of the loss. A larger batch has seen more
samples by then: its losses may be lower, not higher. A mean has to be one of figures: NaN or infinity in any of the
three runs proves nothing.

Losses of the first steps say little about images that are wrong in a way that no model minds yet (twice normalised,
say). So the model's inputs are compared as well: their mean, and their spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fulltilt.diagnose.finding import LossCurves
from fulltilt.launch.search.verify import Verdict

LEAST_STEPS = 10
_TIMES = 3.0
_FLOOR = 0.02
_MEAN_FLOOR = 0.05
"""Of the inputs' spread."""
_SPREAD_FLOOR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    losses: tuple[float, ...]
    inputs: tuple[tuple[float, float], ...] = ()
    """Mean and standard deviation of what went into the model, in the first steps."""
    failed: bool = False
    """It ended with an error, after these."""
    late: bool = False
    """Its time was up before there were losses enough."""
    words: str = ""
    """Its last ones, where it failed: the error, most often."""
    draws: bool = False
    """Its model drew random numbers, tied to the seed."""


def verdict(before: Run, after: Run, other: Run, *, larger_batch: bool = False) -> Verdict:
    """`other` is a run as it is, from another seed."""
    count = min(len(before.losses), len(after.losses), len(other.losses))
    curves = LossCurves(before=before.losses[:count], after=after.losses[:count])
    if count < LEAST_STEPS:
        reason = f"the losses could not be compared: {count} were seen, {LEAST_STEPS} are needed"
        return Verdict(holds=False, reason=reason, curves=curves)
    for whose, run in (("as it is", before), ("with the settings", after), ("as it is, from another seed,", other)):
        figures = sum(map(math.isfinite, run.losses[:count]))
        if figures < count:
            seen = f"{whose} {figures} of {count} are figures"
            reason = f"the losses could not be compared: {seen}, all of them have to be"
            return Verdict(holds=False, reason=reason, curves=curves)
    wrong = _inputs_off(before, after, other)
    if wrong is not None:
        return Verdict(holds=False, reason=wrong, curves=curves)
    middle = count // 2
    told = []
    for name, part in (("first", slice(0, middle)), ("second", slice(middle, count))):
        as_is = (before.losses[part], other.losses[part])
        expected = statistics.fmean(map(statistics.fmean, as_is))
        found = statistics.fmean(after.losses[part])
        apart = abs(statistics.fmean(as_is[0]) - statistics.fmean(as_is[1]))
        chance = math.hypot(_error(before.losses[part]), _error(after.losses[part]))
        band = _TIMES * max(apart, chance) + _FLOOR * abs(expected)
        off = found - expected
        if off > band or (off < -band and not larger_batch):
            reason = (
                f"the mean loss of the {name} half became {found:.4g} where it was {expected:.4g}, "
                f"±{band:.2g} was allowed"
            )
            return Verdict(holds=False, reason=reason, curves=curves)
        told.append(f"{found:.4g} where it was {expected:.4g} (±{band:.2g} by chance)")
    return Verdict(holds=True, reason=f"mean losses of {count} steps: {', then '.join(told)}", curves=curves)


def _error(losses: Sequence[float]) -> float:
    """Standard error of their mean, by the jumps from step to step: a loss that falls is no noise."""
    jumps = [two - one for one, two in pairwise(losses)]
    return statistics.pstdev(jumps) / math.sqrt(2 * len(losses)) if len(jumps) > 1 else 0.0


def _inputs_off(before: Run, after: Run, other: Run) -> str | None:
    if not (before.inputs and after.inputs and other.inputs):
        return None
    (mean, spread), (found, found_spread), (twin, twin_spread) = (_middle(run) for run in (before, after, other))
    if abs(found - mean) > _TIMES * abs(twin - mean) + _MEAN_FLOOR * spread:
        return f"the model's inputs have another mean: {found:.3g} where it was {mean:.3g}"
    chance = abs(twin_spread - spread)
    if abs(found_spread - spread) > _TIMES * chance + _SPREAD_FLOOR * spread:
        return f"the model's inputs spread otherwise: {found_spread:.3g} where it was {spread:.3g}"
    return None


def _middle(run: Run) -> tuple[float, float]:
    means, spreads = zip(*run.inputs, strict=True)
    return statistics.fmean(means), statistics.fmean(spreads)
