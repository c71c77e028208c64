"""Time series made ready to draw: split where nothing was measured, and reduced so that bursts stay visible.

values ──► runs, broken at gaps ──► one point per moment, or low / mean / high per slice of time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

# Points that one series may put on a page. A reduced point counts three times: its mean, its low and its high.
MAX_POINTS = 1500

# Samples further apart than this many intervals have a gap between them: a timer jitters, but not by that much.
_GAP_INTERVALS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment, or a slice of time: then `low` and `high` are its extremes."""

    t: float
    low: float
    mean: float
    high: float


Run = tuple[Point, ...]
"""Points with no gap between them."""


def gap_seconds(times: Sequence[float]) -> float:
    """From what distance on two samples have a gap between them; infinite where there is nothing to judge by."""
    steps = [after - before for before, after in pairwise(times) if after > before]
    return _GAP_INTERVALS * median(steps) if len(steps) > 1 else math.inf


def runs(times: Sequence[float], values: Sequence[float | None], *, max_points: int = MAX_POINTS) -> list[Run]:
    """The series as drawn: exact up to `max_points` readings, beyond that one slice of time per three points.

    A missing value (None, or not finite) or a hole in time ends a run; nothing is interpolated over it.
    """
    gap = gap_seconds(times)
    readings = [(t, v) for t, v in zip(times, values, strict=True) if v is not None and math.isfinite(v)]
    if len(readings) > max_points:
        return _slices(readings, count=max(max_points // 3, 1), gap=gap)
    found: list[list[Point]] = [[]]
    for t, value in zip(times, values, strict=True):
        if value is None or not math.isfinite(value):
            found.append([])
            continue
        last = found[-1][-1].t if found[-1] else t
        if not last <= t <= last + gap:  # also where a clock went back
            found.append([])
        found[-1].append(Point(t=t, low=value, mean=value, high=value))
    return [tuple(run) for run in found if run]


def _slices(readings: Sequence[tuple[float, float]], *, count: int, gap: float) -> list[Run]:
    """At most `count` points, each with the extremes of its slice of time.

    A gap shorter than a slice would be thinner than the line; only longer ones still break it.
    """
    start, end = min(readings)[0], max(readings)[0]
    width = (end - start) / count or 1.0
    cells: dict[int, list[tuple[float, float]]] = {}
    for reading in readings:
        cells.setdefault(min(int((reading[0] - start) / width), count - 1), []).append(reading)

    found: list[list[Point]] = [[]]
    last = -math.inf
    for _, cell in sorted(cells.items()):
        times, values = zip(*cell, strict=True)
        if min(times) - last > max(gap, width) and found[-1]:
            found.append([])
        last = max(times)
        found[-1].append(Point(t=fmean(times), low=min(values), mean=fmean(values), high=max(values)))
    return [tuple(run) for run in found]


def slice_seconds(series: Sequence[Run]) -> float | None:
    """How much time a point of a reduced series stands for; None where every point is one reading."""
    if not any(point.low < point.high for run in series for point in run):
        return None
    steps = [after.t - before.t for run in series for before, after in pairwise(run)]
    return median(steps) if steps else None


def holes(times: Sequence[float], present: Sequence[bool]) -> list[tuple[float, float]]:
    """Stretches of time without a value: from the last sample that had one to the next, or to the end."""
    gap = gap_seconds(times)
    found: list[tuple[float, float]] = []
    last: float | None = None
    missing = False
    for t, there in zip(times, present, strict=True):
        if not there:
            missing = True
            continue
        before = last if last is not None else times[0]
        if t > before and (missing or t - before > gap):
            found.append((before, t))
        last, missing = t, False
    if missing and last is not None and times[-1] > last:
        found.append((last, times[-1]))
    return found


def histogram(values: Sequence[float | None], *, low: float, high: float, bins: int) -> list[float]:
    """Share of the values in each of `bins` equal parts; the ends take what lies outside. Empty for no values."""
    counts = [0] * bins
    for value in values:
        if value is not None and math.isfinite(value):
            counts[min(max(int((value - low) / (high - low) * bins), 0), bins - 1)] += 1
    total = sum(counts)
    return [count / total for count in counts] if total else []
