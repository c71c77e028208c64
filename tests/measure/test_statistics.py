"""Figures of a series, against numpy; cycles found where there is one and only there."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.measure.statistics import cycle_seconds, describe, percentile

percentages = st.lists(st.floats(0, 100), min_size=1, max_size=200)


@given(percentages)
def test_figures_agree_with_numpy(values):
    figures = describe(values)
    assert figures.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert figures.std == pytest.approx(np.std(values), abs=1e-6)
    assert figures.p5 == pytest.approx(np.percentile(values, 5), abs=1e-9)
    assert figures.p95 == pytest.approx(np.percentile(values, 95), abs=1e-9)
    assert figures.below_10 == pytest.approx(np.mean(np.array(values) < 10))
    assert figures.count == len(values)


def test_nothing_measured_has_no_figures():
    assert describe([]) is None


@pytest.mark.parametrize(("values", "percent"), [([], 5), ([1.0], -1), ([1.0], 101)])
def test_a_percentile_that_makes_no_sense_is_refused(values, percent):
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def square(period, share, step, seconds, noise):
    rng = random.Random(0)
    times = [index * step for index in range(int(seconds / step))]
    return times, [(97 if t % period < period * share else 5) + rng.gauss(0, noise) for t in times]


@pytest.mark.parametrize("period", [4.2, 6.0, 6.4, 12.5])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("noise", [0, 5, 20])
@pytest.mark.parametrize(("step", "seconds"), [(0.2, 45), (1.0, 300)])
def test_a_cycle_is_found_at_its_length(period, share, noise, step, seconds):
    found = cycle_seconds(*square(period, share, step, seconds, noise))
    assert found == pytest.approx(period, rel=0.08)


def test_a_cycle_is_found_over_a_drift_and_uneven_times():
    rng = random.Random(3)
    times, values = square(6, 0.6, 0.2, 60, 4)
    times = [t + rng.uniform(-0.02, 0.02) for t in times]
    values = [value * 0.6 + t * 0.5 for t, value in zip(times, values, strict=True)]
    assert cycle_seconds(times, values) == pytest.approx(6, rel=0.05)


def noise(rng, count):
    return [rng.gauss(60, 15) for _ in range(count)]


def walk(rng, count):
    value, values = 50.0, []
    for _ in range(count):
        value = min(100.0, max(0.0, value + rng.gauss(0, 5)))
        values.append(value)
    return values


def random_bursts(rng, count):
    values: list[float] = []
    while len(values) < count:
        values += [rng.uniform(0, 100)] * max(1, int(rng.expovariate(1 / 4)))
    return values[:count]


@pytest.mark.parametrize("shape", [noise, walk, random_bursts])
@pytest.mark.parametrize("count", [30, 120, 300])
def test_chance_is_not_called_a_cycle(shape, count):
    rng = random.Random(f"{shape.__name__} {count}")
    false_alarms = sum(cycle_seconds(range(count), shape(rng, count)) is not None for _ in range(200))
    assert false_alarms <= 8


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 100,
        [98.0 + 2 * (index % 6 < 3) for index in range(100)],  # a ripple of one point
        [100.0] * 50 + [0.0] * 50,  # a single step
        [index % 10 * 10.0 for index in range(23)],  # too few readings
        [100.0 * (index % 60 < 30) for index in range(150)],  # seen twice and a half
    ],
)
def test_what_does_not_repeat_has_no_cycle(values):
    assert cycle_seconds(range(len(values)), values) is None


def test_times_and_values_must_match():
    with pytest.raises(ValueError, match="found 3 and 2"):
        cycle_seconds([0, 1, 2], [1.0, 2.0])
