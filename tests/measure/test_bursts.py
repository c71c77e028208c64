from __future__ import annotations

from collections import Counter

import pytest

from fulltilt.measure.bursts import BURST, MOST_SHARE, ONE_OF, STEP_COST_NS, Bursts, one_of


@pytest.mark.parametrize(("step_ms", "expected"), [(0.0, 16), (0.1, 16), (1.0, 15), (4.0, 4), (8.0, 2), (15.0, 1)])
def test_the_shorter_the_steps_the_fewer_are_watched(step_ms: float, expected: int) -> None:
    assert one_of(step_ms * 1e6) == expected


@pytest.mark.parametrize("step_ms", [1.0, 1.7, 3.0, 7.9, 12.0])
def test_watching_takes_its_share_of_the_time_and_no_more(step_ms: float) -> None:
    bursts = Bursts()
    passed = sum(bursts.away(step_ms * 1e6) for _ in range(2000))
    watched = 2000 * BURST
    share = watched * STEP_COST_NS / ((watched + passed) * step_ms * 1e6)
    assert 0.4 * MOST_SHARE < share < 1.05 * MOST_SHARE


def test_long_steps_are_all_watched() -> None:
    assert {Bursts().away(50e6) for _ in range(20)} == {0}


def test_what_comes_every_few_steps_is_met_as_often_as_it_comes() -> None:
    bursts = Bursts()
    met: Counter[int] = Counter()
    step = 0
    for _ in range(2000):
        for _ in range(BURST):
            met[step % ONE_OF] += 1
            step += 1
        step += bursts.away(1e6)
    assert max(met.values()) < 1.15 * min(met.values())
