"""Series made ready to draw: gaps stay gaps, bursts survive, sizes are bounded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.report.series import gap_seconds, histogram, holes, runs


def flat(series):
    return [point for run in series for point in run]


def test_a_short_series_is_drawn_exactly():
    (run,) = runs([0, 1, 2], [5, 6.5, 7])
    assert [(point.t, point.low, point.mean, point.high) for point in run] == [
        (0, 5, 5, 5),
        (1, 6.5, 6.5, 6.5),
        (2, 7, 7, 7),
    ]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_missing_value_breaks_the_line(missing):
    first, second = runs([0, 1, 2, 3], [1, missing, 3, 4])
    assert [point.mean for point in first] == [1]
    assert [point.mean for point in second] == [3, 4]


def test_missing_samples_break_the_line_and_jitter_does_not():
    times = [0, 1, 2.4, 3, 4, 12, 13]
    first, second = runs(times, [50] * len(times))
    assert [point.t for point in first] == [0, 1, 2.4, 3, 4]
    assert [point.t for point in second] == [12, 13]


def test_a_clock_that_goes_back_breaks_the_line():
    assert [len(run) for run in runs([0, 1, 2, 0, 1, 2], [1] * 6)] == [3, 3]


def test_nothing_is_no_run():
    assert runs([], []) == []
    assert runs([0, 1], [None, None]) == []


@pytest.mark.parametrize("spike_at", [0, 1, 49_999, 77_777, 99_999])
@pytest.mark.parametrize(("calm", "spike"), [(0.0, 100.0), (100.0, 0.0)])
def test_a_spike_of_one_sample_survives_reduction(spike_at, calm, spike):
    values = [calm] * 100_000
    values[spike_at] = spike
    points = flat(runs([float(t) for t in range(100_000)], values))
    assert 3 * len(points) <= 1500
    assert {0.0, 100.0} == {point.low for point in points} | {point.high for point in points}
    (at,) = [point.t for point in points if point.low != point.high]
    assert abs(at - spike_at) < 100_000 / 500


def test_a_long_gap_survives_reduction_and_a_thin_one_does_not():
    times = [float(t) for t in range(50_000) if not 20_000 < t < 25_000]
    values = [None if t == 30_000 else 50.0 for t in times]
    before, after = runs(times, values)
    assert before[-1].t <= 20_000
    assert after[0].t >= 25_000


def test_alternating_values_stay_bounded():
    values = [50.0 if t % 2 else None for t in range(100_000)]
    assert 3 * len(flat(runs([float(t) for t in range(100_000)], values))) <= 1500


@given(
    st.lists(st.none() | st.floats(0, 100), max_size=400),
    st.integers(3, 90),
    st.lists(st.floats(0.01, 30), min_size=400, max_size=400),
)
def test_reduction_keeps_extremes_and_bounds(values, max_points, steps):
    times = [sum(steps[: index + 1]) for index in range(len(values))]
    series = runs(times, values, max_points=max_points)
    points, present = flat(series), [value for value in values if value is not None]
    assert len(points) <= max_points
    assert all(run for run in series)
    assert [point.t for point in points] == sorted(point.t for point in points)
    if present:
        assert min(point.low for point in points) == min(present)
        assert max(point.high for point in points) == max(present)
        assert all(point.low - 1e-9 <= point.mean <= point.high + 1e-9 for point in points)


def test_the_gap_is_judged_by_the_usual_interval():
    assert gap_seconds([0, 0.2, 0.4, 0.6, 9]) == pytest.approx(0.5)
    assert gap_seconds([0]) == math.inf
    assert gap_seconds([0, 5]) == math.inf


def test_holes_are_where_nothing_was_read():
    times = [0, 1, 2, 3, 4, 10, 11]
    assert holes(times, [True] * 7) == [(4, 10)]
    assert holes(times, [True, False, True, True, True, False, False]) == [(0, 2), (4, 11)]
    assert holes(times, [False, True, True, True, True, True, True]) == [(0, 1), (4, 10)]
    assert holes([], []) == []


def test_the_histogram_counts_shares():
    assert histogram([0, 4.9, 5, 100, None, math.nan], low=0, high=100, bins=20) == [0.5, 0.25, *[0] * 17, 0.25]
    assert histogram([-3, 140], low=0, high=100, bins=2) == [0.5, 0.5]
    assert histogram([None], low=0, high=100, bins=2) == []
