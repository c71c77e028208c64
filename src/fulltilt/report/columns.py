"""A recording turned on its side: from one sample after another to one series after another."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median

from fulltilt.machine.sample import GpuSample, Sample

from .series import MAX_POINTS, Run, gap_seconds, holes, runs
from .svg import Scale

# A page with many GPUs gives each series fewer points: it stays below 2 MB, about 10 bytes a point.
_PAGE_POINTS = 96_000
_LEAST_POINTS = 150
_SERIES_PER_GPU, _SERIES_OF_HOST = 10, 4
"""That are drawn of a GPU, its trace in the overview included, and of the host."""

_HEAT_COLUMNS = 400
_HEAT_CELLS = 40_000


@dataclass(frozen=True)  # without slots: the cached properties need a place
class Columns:
    """The samples of a page, and the time axis that all of its charts share."""

    samples: Sequence[Sample]
    gpus: int
    """How many of them the page shows, each with its charts."""

    @cached_property
    def times(self) -> list[float]:
        return [sample.t for sample in self.samples]

    @cached_property
    def time(self) -> Scale:
        """From the first sample to the last."""
        return Scale(low=min(self.times, default=0.0), high=max(self.times, default=0.0))

    @property
    def drawable(self) -> bool:
        """One moment is no chart."""
        return self.time.high > self.time.low

    @property
    def interval_seconds(self) -> float | None:
        """The usual time between two samples."""
        steps = [after - before for before, after in pairwise(self.times)]
        return median(steps) if steps else None

    def gpu(self, label: str) -> list[GpuSample | None]:
        """One GPU at each sample."""
        return [next((gpu for gpu in sample.gpus if gpu.label == label), None) for sample in self.samples]

    def runs(self, values: Sequence[float | None], *, max_points: int | None = None) -> list[Run]:
        """A series ready to draw, within this page's share of points."""
        share = max(_LEAST_POINTS, min(MAX_POINTS, _PAGE_POINTS // (_SERIES_PER_GPU * self.gpus + _SERIES_OF_HOST)))
        return runs(self.times, values, max_points=max_points or share)

    def holes(self, present: Sequence[bool]) -> list[tuple[float, float]]:
        """Where there is nothing to draw, as far as it can be seen."""
        thinnest = (self.time.high - self.time.low) / 500
        return [(start, end) for start, end in holes(self.times, present) if end - start > thinnest]

    def heat(self) -> list[list[float | None]]:
        """Cores × even slices of time: the mean of each slice's samples, or the nearest one where a slice has none."""
        cores = [sample.cpu.cores or () for sample in self.samples]
        count = max(map(len, cores), default=0)
        if not count:
            return []
        times, time, gap = self.times, self.time, gap_seconds(self.times)
        width = max(1, min(len(times), _HEAT_COLUMNS, _HEAT_CELLS // count))
        step = (time.high - time.low) / width
        members: list[list[int]] = [[] for _ in range(width)]
        for index, t in enumerate(times):
            members[min(int(time(t) * width), width - 1)].append(index)
        for column, found in enumerate(members):
            if not found:
                nearest = _nearest(times, time.low + (column + 0.5) * step)
                if abs(times[nearest] - (time.low + (column + 0.5) * step)) <= min(gap, 1e9) / 2 + step / 2:
                    found.append(nearest)
        return [
            [_mean([cores[i][core] for i in found if core < len(cores[i])]) for found in members]
            for core in range(count)
        ]


def _nearest(times: Sequence[float], at: float) -> int:
    after = bisect_left(times, at)
    around = [index for index in (after - 1, after) if 0 <= index < len(times)]
    return min(around, key=lambda index: abs(times[index] - at))


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else None
