"""Two diagnoses or observations, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt.measure.observation import Observation

from . import words
from .figures import PHASES, Figures
from .finding import Diagnosis, Limits
from .thresholds import CAUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    values: tuple[float | None, float | None]
    shown: tuple[str, str]
    change: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    rows: tuple[Row, ...]
    speedup: float | None
    """The second's rate divided by the first's."""
    gone: tuple[str, ...]
    """Causes that only the first has, in words; empty where one of the two is no diagnosis."""
    new: tuple[str, ...]


def compared(first: Diagnosis | Observation, second: Diagnosis | Observation) -> Comparison:
    a, b = _figures(first), _figures(second)
    unit = a.unit if a.unit == b.unit else "steps"
    rates = (_rate(a, unit), _rate(b, unit))
    rows = [_row("rate", rates, unit)]
    if isinstance(first, Diagnosis) and isinstance(second, Diagnosis):
        if a.unit == b.unit:
            rows.append(_row("limit of the step", (first.limits.step, second.limits.step), unit))
        rows.append(_row("loader alone", (first.limits.loader, second.limits.loader), "samples"))
        rows.append(_share("headroom", (first.headroom, second.headroom)))
    rows.append(_seconds("step", (a.step, b.step)))
    for phase in PHASES:
        costs = (a.cost(phase), b.cost(phase))
        if max(costs) > 0:
            rows.append(_seconds(phase, costs))
    gone, new = _causes(first, second)
    now, then = rates
    return Comparison(rows=tuple(rows), speedup=then / now if now and then else None, gone=gone, new=new)


def _figures(one: Diagnosis | Observation) -> Figures:
    if isinstance(one, Diagnosis):
        return Figures(observation=one.observation, limits=one.limits)
    return Figures(observation=one, limits=Limits(step=None, loader=None))


def _rate(figures: Figures, unit: str) -> float | None:
    return figures.rate if figures.unit == unit or not figures.fed_step else 1 / figures.fed_step


def _row(name: str, values: tuple[float | None, float | None], unit: str) -> Row:
    before, after = values
    change = f"{after / before:.2f}×" if before and after else None
    return Row(name=name, values=values, shown=(words.rate(before, unit), words.rate(after, unit)), change=change)


def _share(name: str, values: tuple[float | None, float | None]) -> Row:
    shown = tuple("not measured" if value is None else words.percent(value) for value in values)
    before, after = values
    change = None if before is None or after is None else f"{100 * (after - before):+.0f} points"
    return Row(name=name, values=values, shown=(shown[0], shown[1]), change=change)


def _seconds(name: str, values: tuple[float, float]) -> Row:
    before, after = values
    difference = after - before
    sign = "+" if difference > 0 else "−"
    change = f"{sign}{words.seconds(abs(difference))}" if difference else None
    return Row(name=name, values=values, shown=(words.seconds(before), words.seconds(after)), change=change)


def _causes(first: Diagnosis | Observation, second: Diagnosis | Observation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(first, Diagnosis) or not isinstance(second, Diagnosis):
        return (), ()
    before = {finding.cause for finding in first.findings}
    after = {finding.cause for finding in second.findings}
    return tuple(CAUSES[name] for name in CAUSES if name in before - after), tuple(
        CAUSES[name] for name in CAUSES if name in after - before
    )
