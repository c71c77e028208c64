"""Two diagnoses, observations or outcomes of runs, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt import words
from fulltilt.measure.observation import Observation

from .figures import PHASES, Figures
from .finding import Diagnosis, Limits, Outcome
from .thresholds import CAUSES

One = Diagnosis | Observation | Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    values: tuple[float | None, float | None]
    shown: tuple[str, str]
    change: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    rows: tuple[Row, ...]
    labels: tuple[str, str]
    """What was measured: the script as it is, or with its plan."""
    speedup: float | None
    """The second's rate divided by the first's."""
    gone: tuple[str, ...]
    """Causes that only the first has, in words; empty where one of the two is no diagnosis."""
    new: tuple[str, ...]


def compared(first: One, second: One) -> Comparison:
    a, b = _figures(first), _figures(second)
    units = {one.unit for one in (a, b) if one.steps} or {"samples"}
    alike = len(units) == 1
    unit = min(units) if alike else "steps"
    rates = (_rate(first, a, unit), _rate(second, b, unit))
    ranks = " per rank" if max(a.observation.world, b.observation.world) > 1 else ""
    rows = [_row(f"rate{ranks}", rates, unit)]
    if not isinstance(first, Observation) and not isinstance(second, Observation):
        if alike:
            rows.append(_row(f"limit of the step{ranks}", (a.limits.step, b.limits.step), unit))
        if isinstance(first, Diagnosis) and isinstance(second, Diagnosis):
            rows.append(_row("loader alone", (a.limits.loader, b.limits.loader), "samples"))
        rows.append(_share("headroom", (_headroom(first, a), _headroom(second, b))))
    if a.steps and b.steps:
        rows.append(_seconds("step", (a.step, b.step)))
        costs = {phase: (a.cost(phase), b.cost(phase)) for phase in PHASES}
        rows += [_seconds(phase, both) for phase, both in costs.items() if max(both) > 0]
    gone, new = _causes(first, second)
    now, then = rates
    speedup = then / now if now and then else None
    return Comparison(rows=tuple(rows), labels=(_label(first), _label(second)), speedup=speedup, gone=gone, new=new)


def _label(one: One) -> str:
    return "with its plan" if isinstance(one, Outcome) else "as it is"


def _figures(one: One) -> Figures:
    if isinstance(one, Diagnosis):
        return Figures(observation=one.observation, limits=one.limits)
    if isinstance(one, Observation):
        return Figures(observation=one, limits=Limits(step=None, loader=None))
    nothing = Observation(command=(), ended="steps", seconds=0.0)
    return Figures(observation=one.observation or nothing, limits=Limits(step=one.limit, loader=None))


def _headroom(one: One, figures: Figures) -> float | None:
    return one.headroom if isinstance(one, Diagnosis) else figures.headroom


def _rate(one: One, figures: Figures, unit: str) -> float | None:
    if isinstance(one, Outcome) and not figures.steps:  # the plan was not run to its end: what its trial gave
        return one.samples_per_second
    return figures.rate if figures.unit == unit or not figures.fed_step else 1 / figures.fed_step


def _row(name: str, values: tuple[float | None, float | None], unit: str) -> Row:
    before, after = values
    change = f"{after / before:.2f}×" if before and after else None
    return Row(name=name, values=values, shown=(words.rate(before, unit), words.rate(after, unit)), change=change)


def _share(name: str, values: tuple[float | None, float | None]) -> Row:
    shown = tuple("not measured" if value is None else words.percent(value) for value in values)
    before, after = values
    change = None
    if before is not None and after is not None:
        points = round(100 * (after - before))
        change = f"{points:+d} points".replace("-", "−") if points else "0 points"
    return Row(name=name, values=values, shown=(shown[0], shown[1]), change=change)


def _seconds(name: str, values: tuple[float, float]) -> Row:
    before, after = values
    difference = after - before
    sign = "+" if difference > 0 else "−"
    change = f"{sign}{words.seconds(abs(difference))}" if difference else None
    return Row(name=name, values=values, shown=(words.seconds(before), words.seconds(after)), change=change)


def _causes(first: One, second: One) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(first, Diagnosis) or not isinstance(second, Diagnosis):
        return (), ()
    before = {finding.cause for finding in first.findings}
    after = {finding.cause for finding in second.findings}
    return tuple(CAUSES[name] for name in CAUSES if name in before - after), tuple(
        CAUSES[name] for name in CAUSES if name in after - before
    )
