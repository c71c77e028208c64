"""When a timeline has been watched long enough, and which of its steps only warmed up. Pure policy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LEAST_STEPS = 30
"""Fewer are never enough."""
LEAST_SECONDS = 3.0
WINDOWS = 3
SPREAD = 0.04
"""The slowest window may take this much longer than the fastest."""
WARM_UP_LEAST = 3
"""Steps that always warm up: allocators, cuDNN's choices, first compilations."""
WARM_UP_SHARE = 0.3
"""At most this share of the steps."""
WARM_UP_SLOW = 1.5
"""A leading step that takes this many times the median of the rest still warms up."""


def warm_up(seconds: Sequence[float]) -> int:
    """How many leading steps only warm up."""
    count = len(seconds)
    if count <= 2:
        return 0
    most = max(1, int(count * WARM_UP_SHARE))
    least = min(WARM_UP_LEAST, most)
    usual = median(seconds[most:])
    slow = [place for place in range(most) if seconds[place] > WARM_UP_SLOW * usual]
    return max(least, slow[-1] + 1 if slow else 0)


def is_stable(seconds: Sequence[float]) -> bool:
    """The thirds of the steps took the same time, within a few percent; `seconds` are of all steps so far.

    Windows are sums, not medians: a loader with four workers gives batches in bursts of four, and a rate is what is
    asked for. They grow with the steps, until such bursts no longer show in them.
    """
    warm = seconds[warm_up(seconds) :]
    if len(warm) < LEAST_STEPS or sum(warm) < LEAST_SECONDS:
        return False
    size = len(warm) // WINDOWS
    sums = [sum(warm[len(warm) - (place + 1) * size : len(warm) - place * size]) for place in range(WINDOWS)]
    return max(sums) <= (1 + SPREAD) * min(sums)
