"""Trials beside each other."""

from __future__ import annotations

import pytest

from fulltilt.launch.search.pairs import History
from fulltilt.launch.search.rate import Rate


def history(*trials: tuple[str, float]) -> History:
    found = History()
    for key, value in trials:
        found.add(key, Rate(value=value, noise=0.01))
    return found


def test_drift_does_not_change_a_ratio() -> None:
    """The machine slows down to a third; `b` is half as fast again as `a` all the time."""
    speed = {"a": 100.0, "b": 150.0}
    found = history(*[(key, speed[key] * 0.8**at) for at, key in enumerate("ababab")])
    gain, error = found.gain("b", "a")
    assert gain == pytest.approx(0.5)
    assert gain > error
    assert len(found.pairs("b", "a")) == 5
    rate, other = found.beside("b", "a")
    assert rate.value / other.value - 1 == pytest.approx(gain)


def test_trials_that_are_not_beside_each_other_count_by_their_scatter() -> None:
    quiet = history(("a", 100), ("c", 90), ("b", 130))
    _, sure = quiet.gain("b", "a")
    uneven = history(("a", 100), ("c", 90), ("a", 130), ("c", 95), ("b", 130))
    assert not uneven.pairs("b", "a")
    _, unsure = uneven.gain("b", "a")
    assert unsure > 5 * sure


def test_one_pair_after_another_makes_it_surer() -> None:
    errors = []
    for turns in (1, 2, 4):
        found = history(*[(key, value) for _ in range(turns) for key, value in (("a", 100), ("b", 110))])
        errors.append(found.gain("b", "a")[1])
    assert errors == sorted(errors, reverse=True)


def test_pairs_from_before_can_be_left_out() -> None:
    found = history(("a", 100), ("b", 150), ("a", 100), ("b", 104), ("a", 100))
    found.since = 2
    assert found.gain("b", "a")[0] == pytest.approx(0.04)
