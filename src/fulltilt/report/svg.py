"""The shapes of a chart, as SVG in a fixed box that the page stretches to its own width.

Only shapes live in the SVG, and their strokes don't stretch; words are HTML around it (chart.py) and stay readable at
every width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .markup import Child, Markup, join, tag
from .series import Run

WIDTH = 1000
HEIGHT = 100

HEAT_LEVELS = 10
"""Steps of the heat map's colour, 10 points each."""

_TIMES = 8
"""About as many moments are named on an axis of time."""
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A stretch of values laid onto 0 … 1; values outside stay at the edge."""

    low: float
    high: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return min(max((value - self.low) / span, 0.0), 1.0) if span > 0 else 0.5

    def x(self, value: float) -> str:
        """The value as an SVG coordinate, left to right."""
        return number(self(value) * WIDTH)

    def y(self, value: float) -> str:
        """The value as an SVG coordinate, bottom to top."""
        return number((1 - self(value)) * HEIGHT)

    def percent(self, value: float) -> str:
        """The value as a CSS length."""
        return f"{number(self(value) * 100, digits=3)}%"


PERCENT = Scale(low=0, high=100)


def number(value: float, *, digits: int = 1) -> str:
    """The shortest way to write it: no trailing zeros."""
    written = f"{value:.{digits}f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return "0" if written == "-0" else written


def ticks(scale: Scale, *, about: int = 4) -> list[float]:
    """Round values inside the scale, about as many as asked for."""
    span = scale.high - scale.low
    if span <= 0:
        return [scale.low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def time_ticks(scale: Scale) -> list[float]:
    """Moments at round seconds, minutes or hours; below five seconds, at fractions."""
    span = scale.high - scale.low
    if span < 5:
        return ticks(scale, about=5)
    days = math.ceil(span / _TIMES / 86400) * 86400
    step = next((step for step in _TIME_STEPS if span / step <= _TIMES), days)
    slack = 0.01 * span / step  # a recording that starts at 0.02 s still starts at 0 for its reader
    first, last = math.ceil(scale.low / step - slack), math.floor(scale.high / step + slack)
    return [float(index * step) for index in range(first, last + 1)]


def moment(seconds: float, *, span: float) -> str:
    """A moment on a time axis of that span: 40 s, 2:30, 1:05:00."""
    if span < 120:
        return f"{number(seconds, digits=2)} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if span < 7200:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def canvas(*shapes: Child, label: str, width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """The box; `label` is what a screen reader says in place of the picture."""
    return tag(
        "svg",
        *shapes,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def line(series: Iterable[Run], x: Scale, y: Scale, *, class_: str) -> Markup:
    """The means: a stroke for each run, and a dot (a stroke without length, with round ends) for a lone point."""
    drawn: dict[bool, list[str]] = {False: [], True: []}
    for run in series:
        drawn[len(run) == 1].append(f"M{_points(run, x, y)}")
    strokes, dots = drawn[False], [f"{point}h0" for point in drawn[True]]
    return join(
        tag("path", class_=f"line {class_}", d="".join(strokes)) if strokes else None,
        tag("path", class_=f"line dot {class_}", d="".join(dots)) if dots else None,
    )


def area(series: Iterable[Run], x: Scale, y: Scale, *, class_: str) -> Markup:
    """What lies under the line."""
    shapes = (
        f"M{x.x(run[0].t)} {HEIGHT}L{_points(run, x, y)} {x.x(run[-1].t)} {HEIGHT}z" for run in series if len(run) > 1
    )
    return tag("path", class_=f"area {class_}", d="".join(shapes))


def band(series: Iterable[Run], x: Scale, y: Scale, *, class_: str) -> Markup | None:
    """From low to high, where points stand for slices of time; None where every point is one sample."""
    shapes = []
    for run in series:
        if any(point.low < point.high for point in run):
            top = " ".join(f"{x.x(point.t)} {y.y(point.high)}" for point in run)
            bottom = " ".join(f"{x.x(point.t)} {y.y(point.low)}" for point in reversed(run))
            shapes.append(f"M{top} {bottom}z")
    return tag("path", class_=f"band {class_}", d="".join(shapes)) if shapes else None


def level(y: float, *, class_: str) -> Markup:
    """A line across, at 0 … 1 from the bottom."""
    at = number((1 - y) * HEIGHT)
    return tag("path", class_=class_, d=f"M0 {at}H{WIDTH}")


def stretch(start: float, end: float, x: Scale, *, class_: str) -> Markup:
    """A stretch of time, from bottom to top."""
    left, right = x(start) * WIDTH, x(end) * WIDTH
    return tag("rect", class_=class_, x=number(left), y=0, width=number(max(right - left, 1.0)), height=HEIGHT)


def bars(shares: Sequence[float], *, class_: str) -> Markup:
    """A histogram that lies on its side: the first bin at the bottom, the largest share as wide as the box."""
    top, step = max(shares), HEIGHT / len(shares)
    boxes = (
        f"M0 {number(HEIGHT - (index + 1) * step + 0.3)}h{number(share / top * WIDTH)}v{number(step - 0.6)}H0z"
        for index, share in enumerate(shares)
        if share
    )
    return tag("path", class_=f"bars {class_}", d="".join(boxes))


def heat_map(rows: Sequence[Sequence[float | None]], *, label: str) -> Markup:
    """One line of cells per row, coloured by percent; a None stays empty.

    Cells of one level share a path and equal neighbours a stroke: a day of 64 cores stays small.
    """
    strokes: dict[int, list[str]] = {}
    for row, values in enumerate(rows):
        for heat, column, length in _stretches(values):
            strokes.setdefault(heat, []).append(f"M{column} {row + 0.5:g}h{length}")
    paths = (tag("path", class_=f"heat h{heat}", d="".join(parts)) for heat, parts in sorted(strokes.items()))
    return canvas(*paths, label=label, width=max(map(len, rows), default=1) or 1, height=len(rows) or 1)


def _stretches(values: Sequence[float | None]) -> Iterator[tuple[int, int, int]]:
    """(level, first column, how many) of each stretch of equal level."""
    column = 0
    for heat, cells in groupby(values, key=_heat):
        length = len(list(cells))
        if heat is not None:
            yield heat, column, length
        column += length


def _heat(value: float | None) -> int | None:
    if value is None or not math.isfinite(value):
        return None
    return min(max(int(value / 100 * HEAT_LEVELS), 0), HEAT_LEVELS - 1)


def _points(run: Run, x: Scale, y: Scale) -> str:
    return " ".join(f"{x.x(point.t)} {y.y(point.mean)}" for point in run)
