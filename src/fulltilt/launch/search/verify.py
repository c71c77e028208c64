"""Whether a script trains as before: losses of its first steps, before and after, from the same seed. Pure.

The rule. Runs to compare have one seed, and each sample's random draws are tied to the sample, so that the number of
workers does not matter. Where settings that round would drop others, what is dropped is a matter of the seed, too.

exact     Every loss is the same, to the last bit. A script whose losses differ between two runs as they are (a GPU
          that adds in any order) can't be held to that: its settings are then judged as numeric ones, without a floor.
numeric   Rounding differs, and training makes a small difference grow. How fast it grows is the script's own, so it is
          measured: a third run, as it is, begins with its weights off by the rounding that the settings bring
          (bfloat16: 2^-9, otherwise 2^-12). At each step the loss may be off by `_TIMES` as much as that run was until
          then (and two steps on), plus `_FLOOR` of the loss. How far one such run strays is chance, too: where the loss
          is off by more, a fourth run has its weights off the other way, and the one that strayed further counts.

NaN and infinity count as equal to themselves only, and prove nothing: losses enough have to be figures, and no band
holds one that differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fulltilt.diagnose.finding import Level, LossCurves

LEAST_STEPS = 5
"""Fewer losses prove nothing."""
_TIMES = 3.0
_FLOOR = 0.01
_LOOK_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    holds: bool
    reason: str
    """One sentence."""
    curves: LossCurves
    step: int | None = None
    """The first one that is off."""
    draws: bool = False
    """The model drew in the runs compared, tied to the seed: in the script's own run it may draw other numbers."""


def roundings(settings: Mapping[str, Any]) -> float:
    """By how much, relatively, the settings round: what the third run's weights are off by."""
    half = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
    return max(2.0**-12, half.get(settings.get("autocast", ""), 0.0))


def is_same(before: Sequence[float], after: Sequence[float]) -> bool:
    """To the last bit, over the steps that both have."""
    return all(_equal(one, other) for one, other in zip(before, after, strict=False))


def verdict(
    level: Level,
    before: Sequence[float],
    after: Sequence[float],
    *,
    again: Sequence[float] = (),
    nudged: Sequence[Sequence[float]] = (),
) -> Verdict:
    """Judge losses.

    Args:
        again: of a second run as it is; asked for where exact settings differ.
        nudged: of the runs whose weights were off; asked for where settings are numeric.
    """
    count = min(len(before), len(after))
    curves = LossCurves(before=tuple(before[:count]), after=tuple(after[:count]))
    figures = sum(map(math.isfinite, curves.before))
    if figures < LEAST_STEPS:
        seen = f"{count} were seen" if figures == count else f"{figures} of {count} are figures"
        reason = f"the losses could not be compared: {seen}, {LEAST_STEPS} are needed"
        return Verdict(holds=False, reason=reason, curves=curves)
    if is_same(before, after):
        return Verdict(holds=True, reason=f"all {count} losses are the same, to the last bit", curves=curves)
    off = next(at for at in range(count) if not _equal(before[at], after[at]))
    if level == "exact" and is_same(before, again):
        if len(again) <= off:  # nothing says what a second run would have had there
            reason = (
                f"the losses could not be compared: they differ from step {off + 1} on, and a second run as it is has "
                f"{len(again)} of them"
            )
            return Verdict(holds=False, reason=reason, curves=curves)
        told = f"{before[off]:.6g} became {after[off]:.6g}"
        reason = f"losses differ from step {off + 1} on ({told}), and two runs as they are don't"
        return Verdict(holds=False, reason=reason, curves=curves, step=off)
    references, floor = ([again], 0.0) if level == "exact" else (nudged, _FLOOR)
    band = _band(before[:count], references, floor)
    curves = LossCurves(before=curves.before, after=curves.after, band=tuple(band))
    for at in range(count):
        if not _within(before[at], after[at], band[at]):
            reason = (
                f"losses left the band at step {at + 1}: {before[at]:.6g} became {after[at]:.6g}, "
                f"±{band[at]:.2g} was allowed"
            )
            return Verdict(holds=False, reason=reason, curves=curves, step=at)
    near = max((at for at in range(count) if band[at] > 0), key=lambda at: _apart(before[at], after[at]) / band[at])
    apart = _apart(before[near], after[near])
    reason = (
        f"{count} losses within the band: nearest to its edge at step {near + 1}, {apart:.2g} apart where "
        f"±{band[near]:.2g} is what rounding may make"
    )
    return Verdict(holds=True, reason=reason, curves=curves)


def fallbacks(settings: Mapping[str, Any], level_of: Mapping[str, Level]) -> list[dict[str, Any]]:
    """What to go back to, in order, when settings don't hold: without what is another training, without half precision,
    the exact ones, none."""
    numeric = {name: value for name, value in settings.items() if level_of[name] != "semantic"}
    steps = [
        numeric,
        {name: value for name, value in numeric.items() if name != "autocast"},
        {name: value for name, value in settings.items() if level_of[name] == "exact"},
        {},
    ]
    found: list[dict[str, Any]] = []
    for one in steps:
        if one != settings and one not in found:
            found.append(one)
    return found


def _band(before: Sequence[float], references: Sequence[Sequence[float]], floor: float) -> list[float]:
    apart = [
        _furthest(loss, [other[at] for other in references if at < len(other)])
        for at, loss in enumerate(before[: max(map(len, references), default=0)])
    ]
    known = [one for one in apart if math.isfinite(one)]
    running, band = 0.0, []
    for at, loss in enumerate(before):
        near = [one for one in apart[at : at + 1 + _LOOK_AHEAD] if math.isfinite(one)]
        running = max(running, *near, 0.0) if near else max([running, *known[-1:]])
        band.append(_TIMES * running + (floor * abs(loss) if math.isfinite(loss) else 0.0))
    return band


def _furthest(loss: float, others: Sequence[float]) -> float:
    """Of those that are a figure; infinitely far where none is."""
    return max((one for other in others if math.isfinite(one := abs(loss - other))), default=math.inf)


def _within(one: float, other: float, band: float) -> bool:
    return _equal(one, other) or (math.isfinite(one) and math.isfinite(other) and abs(one - other) <= band)


def _apart(one: float, other: float) -> float:
    return 0.0 if _equal(one, other) else abs(one - other)


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
