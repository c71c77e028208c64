"""Trials in their order, and what those beside each other say. Pure.

A machine that is shared drifts: a rate of a minute ago says little about one of now. The ratio of two trials that
follow each other says as much as ever. How far such ratios lie apart tells how sure their mean is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fulltilt.launch.search.rate import Rate


@dataclass(slots=True)
class History:
    """Every trial that gave a rate."""

    trials: list[tuple[str, Rate]] = field(default_factory=list)
    since: int = 0
    """Pairs that begin before this trial no longer count."""

    def add(self, key: str, rate: Rate) -> None:
        self.trials.append((key, rate))

    @property
    def last(self) -> str | None:
        return self.trials[-1][0] if self.trials else None

    def rate(self, key: str) -> Rate | None:
        """Of all trials of these settings."""
        found = [rate for name, rate in self.trials if name == key]
        return _mean(found) if found else None

    def pairs(self, one: str, other: str) -> list[tuple[Rate, Rate]]:
        """Of trials that follow each other, either way round."""
        return [pair for pair, _ in self._pairs(one, other)]

    def _pairs(self, one: str, other: str) -> list[tuple[tuple[Rate, Rate], bool]]:
        """And whether `one` was the first of them."""
        found = []
        for (name, rate), (following, next_rate) in pairwise(self.trials[self.since :]):
            if (name, following) == (one, other):
                found.append(((rate, next_rate), True))
            elif (name, following) == (other, one):
                found.append(((next_rate, rate), False))
        return found

    def gain(self, one: str, other: str) -> tuple[float, float]:
        """How much faster the one is than the other, and the standard error of that."""
        pairs = self.pairs(one, other)
        if not pairs:
            return compare(self._known(one), self._known(other), scatter=self.scatter)
        logs = [math.log(rate.value / against.value) for rate, against in pairs]
        ratio = math.exp(self._both_ways(one, other))
        each = statistics.fmean(math.hypot(rate.noise, against.noise) for rate, against in pairs)
        # Few pairs may lie close together by chance.
        apart = statistics.stdev(logs) if len(logs) > 1 else 0.0
        error = max(each, apart, self.scatter) / math.sqrt(len(logs))
        return ratio - 1.0, ratio * error

    def _both_ways(self, one: str, other: str) -> float:
        """The mean of the logarithms, either way round for half: what a machine loses meanwhile counts for both."""
        ways: dict[bool, list[float]] = {}
        for (rate, against), first in self._pairs(one, other):
            ways.setdefault(first, []).append(math.log(rate.value / against.value))
        return statistics.fmean(statistics.fmean(logs) for logs in ways.values())

    def beside(self, one: str, other: str) -> tuple[Rate, Rate]:
        """Both rates as trials beside each other have them, where there are such; `gain` is their ratio."""
        pairs = self.pairs(one, other)
        if not pairs:
            return self._known(one), self._known(other)
        first, second = (_mean([pair[at] for pair in pairs]) for at in (0, 1))
        ratio = 1.0 + self.gain(one, other)[0]
        middle = math.sqrt(first.value * second.value)
        return (
            replace(first, value=middle * math.sqrt(ratio)),
            replace(second, value=middle / math.sqrt(ratio)),
        )

    @property
    def scatter(self) -> float:
        """How far trials of the same settings lie apart: standard deviation, relative. 0 where none was repeated."""
        by_key: dict[str, list[float]] = {}
        for key, rate in self.trials:
            by_key.setdefault(key, []).append(math.log(rate.value))
        # Drift within a minute or two is what pairs are free of: neighbours in time, not all against all.
        jumps = [(two - one) ** 2 / 2 for logs in by_key.values() for one, two in pairwise(logs)]
        return min(math.sqrt(statistics.fmean(jumps)), _MOST_SCATTER) if jumps else 0.0

    def _known(self, key: str) -> Rate:
        found = self.rate(key)
        assert found is not None
        return found


_MOST_SCATTER = 0.25
"""Beyond that it is drift, which pairs are free of."""


def compare(one: Rate, other: Rate, *, scatter: float = 0.0) -> tuple[float, float]:
    """How much faster `one` is than `other`, and the standard error of that."""
    ratio = one.value / other.value
    return ratio - 1.0, ratio * math.hypot(one.noise, other.noise, scatter)


def _mean(rates: Sequence[Rate]) -> Rate:
    value = statistics.fmean(rate.value for rate in rates)
    inner = math.sqrt(math.fsum(rate.noise**2 for rate in rates)) / len(rates)
    # Two trials may lie further apart than either of them is uneven in itself.
    apart = (max(rate.value for rate in rates) - min(rate.value for rate in rates)) / 2 / value / math.sqrt(len(rates))
    return Rate(value=value, noise=max(inner, apart), waits=rates[-1].waits)
