"""Figures of a series of percentages: mean, spread, percentiles, the share near zero, the length of its cycle.

Pure functions. numpy is imported inside the one that needs it, so that the live view never pays for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a series of percentages comes down to."""

    mean: float
    std: float
    """Standard deviation of the readings themselves (divided by their number), in points."""
    p5: float
    p95: float
    below_10: float
    """Share of the readings below 10 %, from 0 to 1."""
    count: int
    """How many readings there were."""

    def to_json(self) -> dict[str, float]:
        return {
            "mean": round(self.mean, 2),
            "std": round(self.std, 2),
            "p5": round(self.p5, 2),
            "p95": round(self.p95, 2),
            "below_10": round(self.below_10, 4),
        }


def describe(values: Sequence[float]) -> Figures | None:
    """The figures of `values`; None when there are none, because unmeasured is not zero."""
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    ordered = sorted(values)
    return Figures(
        mean=mean,
        std=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count),
        p5=percentile(ordered, 5),
        p95=percentile(ordered, 95),
        below_10=sum(value < 10 for value in values) / count,
        count=count,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The `percent` percentile of values already in order, interpolated between neighbours as numpy does."""
    if not ordered:
        raise ValueError("a percentile needs at least one value, found none")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is from 0 to 100, found {percent}")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# A cycle is reported only when it is plain to see; each bound below rejects one kind of false alarm.
_LEAST_READINGS = 24
_LEAST_REPEATS = 3  # seen fewer times, it may be chance
_LEAST_PEAK = 0.35  # correlation of the series with itself one cycle later
_NOISE = 4.0  # ... and that many times what white noise of this length would show
_LEAST_STD = 3.0  # points: below, the series is flat and its ripples don't matter


def cycle_seconds(times: Sequence[float], values: Sequence[float]) -> float | None:
    """The length of the cycle in which `values` rise and fall, in seconds; None where no cycle is plain to see.

    Autocorrelation: the series is laid on an even grid, its trend removed, and compared with itself shifted. The cycle
    is the first shift that fits nearly as well as the best, fits again at twice the shift, and is opposed at half;
    a drift or a single dip does none of that.
    """
    if len(times) != len(values):
        raise ValueError(f"as many times as values are needed, found {len(times)} and {len(values)}")
    if len(values) < _LEAST_READINGS:
        return None
    import numpy as np

    at = np.asarray(times, dtype=float)
    step = float(np.median(np.diff(at)))
    if step <= 0:
        return None
    grid = np.arange(at[0], at[-1] + step / 2, step)
    series = np.interp(grid, at, np.asarray(values, dtype=float))
    series -= np.polyval(np.polyfit(grid, series, 1), grid)
    count = len(series)
    if count < _LEAST_READINGS or series.std() < _LEAST_STD:
        return None

    spectrum = np.fft.rfft(series, 2 * count)  # padded, so that the end doesn't wrap round to the start
    products = np.fft.irfft(spectrum * np.conj(spectrum))[:count]
    fit = products / np.arange(count, 0, -1) / (products[0] / count)

    longest = count // _LEAST_REPEATS
    below_zero = np.flatnonzero(fit[:longest] < 0)
    if not len(below_zero):
        return None  # it never turns: a drift, not a cycle
    inner = np.arange(max(2, int(below_zero[0])), longest + 1)
    peaks = inner[(fit[inner] >= fit[inner - 1]) & (fit[inner] > fit[inner + 1])]
    strong = [int(shift) for shift in peaks if fit[shift] >= max(_LEAST_PEAK, _NOISE / math.sqrt(count - shift))]
    best = max((fit[shift] for shift in strong), default=0.0)
    for shift in strong:
        exact = shift + _offset(fit[shift - 1], fit[shift], fit[shift + 1])
        again = fit[_around(2 * exact)].max()
        opposed = fit[_around(exact / 2)].min()
        if fit[shift] >= best / 2 and again >= fit[shift] / 2 and opposed < 0:
            return float(exact * step)
    return None


def _around(place: float) -> slice:
    return slice(max(0, math.floor(place) - 1), math.ceil(place) + 2)


def _offset(before: float, peak: float, after: float) -> float:
    """Where between its neighbours a peak really lies: the top of the parabola through the three."""
    bend = before - 2 * peak + after
    return 0.0 if bend == 0 else 0.5 * (before - after) / bend
