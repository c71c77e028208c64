from __future__ import annotations

import pytest

from fulltilt.measure.stable import LEAST_STEPS, is_stable, warm_up


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], 0),
        ([9.0, 0.1], 0),
        ([9.0, 0.1, 0.1], 1),
        ([9.0, 3.0, 0.5] + [0.1] * 20, 3),
        ([0.1] * 20, 3),
        ([9.0, 0.1, 0.1, 0.1, 4.0] + [0.1] * 30, 5),
        ([1.0] * 10 + [0.1] * 5, 3),
    ],
)
def test_steps_that_only_warm_up(seconds: list[float], expected: int) -> None:
    assert warm_up(seconds) == expected


def test_even_steps_are_stable() -> None:
    assert is_stable([0.2] * (LEAST_STEPS + 13))


def test_few_steps_or_a_short_time_are_not() -> None:
    assert not is_stable([0.2] * (LEAST_STEPS - 1))
    assert not is_stable([0.001] * 200)


def test_a_drift_is_not() -> None:
    assert not is_stable([0.1 + 0.005 * step for step in range(60)])


def test_bursts_of_a_loaders_workers_are() -> None:
    assert is_stable([0.4, 0.001, 0.001, 0.001] * 30)
