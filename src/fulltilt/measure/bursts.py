"""Short steps are watched in bursts: all of them would cost a script that makes a thousand per second too much. Pure.

████████████████ ······· ██ ············ ██ ····· ██ ·········        █ watched   · passed by
the first ones           a burst
"""

from __future__ import annotations

from math import ceil
from random import Random

FIRST = 64
"""Steps that are watched one after the other, however short: they tell what a step is."""
BURST = 8
"""Steps that are watched before others are passed by again."""
STEP_COST_NS = 150_000
"""What watching a step costs a host that is busy launching, at most: calls of Python between those of torch."""
MOST_SHARE = 0.01
"""Of the time, for watching."""
ONE_OF = 16
"""At least this part of the steps is watched."""


def one_of(step_ns: float) -> int:
    """One of how many steps is watched, where they take so long."""
    return min(ONE_OF, max(1, ceil(STEP_COST_NS / (MOST_SHARE * max(step_ns, 1)))))


class Bursts:
    """How many steps to pass by after each burst; of any length about the usual one, so that what comes again every
    few steps (workers that hand over together, a loss that is printed) is met as often as it comes."""

    def __init__(self) -> None:
        self._draws = Random(0)

    def away(self, step_ns: float) -> int:
        usual = BURST * (one_of(step_ns) - 1)
        return self._draws.randint(1, 2 * usual - 1) if usual else 0
