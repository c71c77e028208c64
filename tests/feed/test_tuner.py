"""The search for a number of workers, against machines made of formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.feed.tuner import MARGIN, MEASURE_BATCHES, TRIALS, Tuner, Window


def run(tuner: Tuner, rate_of, limit: float) -> int:
    """Tune on a machine whose feed reaches rate_of(workers), under a training limit."""
    for _ in range(TRIALS + 2):
        if tuner.decision is not None:
            break
        feed = rate_of(tuner.workers)
        rate = min(feed, limit)
        tuner.observe(rate, max(0.0, 1.0 - feed / limit) if feed < limit else 0.0)
    assert tuner.decision is not None
    assert tuner.decision.value == tuner.workers
    return tuner.workers


@given(st.integers(1, 64), st.integers(1, 64), st.floats(10, 1000), st.floats(50, 50_000))
def test_it_ends_near_the_best_of_an_exhaustive_search(start, most, per_worker, limit):
    tuner = Tuner(start, most)
    chosen = run(tuner, lambda workers: workers * per_worker, limit)
    best = max(min(workers * per_worker, limit) for workers in range(1, most + 1))
    assert min(chosen * per_worker, limit) >= 0.95 * best or len(tuner.trials) == TRIALS
    assert 1 <= chosen <= most


@given(st.integers(2, 32), st.floats(0.5, 0.98))
def test_it_never_ends_below_where_it_began(start, slope):
    def crowded(workers):  # beyond some number more workers are slower
        return 1000 * workers**slope if workers <= 8 else 1000 * 8**slope * (1 - 0.03 * (workers - 8))

    chosen = run(Tuner(start, 32), lambda w: max(crowded(w), 1.0), 1e9)
    assert crowded(chosen) >= crowded(start) * (1 - MARGIN)


def test_fewer_workers_are_kept_where_they_do():
    chosen = run(Tuner(15, 15), lambda workers: workers * 900, 3000)
    assert chosen <= 5
    assert chosen * 900 >= 3000 * 0.98


def test_a_feed_that_binds_is_told():
    tuner = Tuner(4, 4)
    assert run(tuner, lambda workers: workers * 100, 5000) == 4
    assert "this is what binds" in tuner.decision.reason
    assert "4: 400/s" in tuner.decision.reason


def test_a_decision_stands():
    tuner = Tuner(2, 2)
    run(tuner, lambda workers: 100, 50)
    before = tuner.workers
    assert tuner.observe(1.0, 1.0) == before


def test_a_window_lets_a_change_settle_and_then_measures():
    now = [0.0]
    window = Window(lambda: now[0])
    measured = []
    for _ in range(60):
        now[0] += 0.1
        if (found := window.add(32, 0.05)) is not None:
            measured.append((now[0], *found))
    assert len(measured) == 1
    at, rate, wait = measured[0]
    assert at == pytest.approx(4.1, abs=0.2)
    assert rate == pytest.approx(320, rel=0.01)
    assert wait == pytest.approx(0.5, rel=0.01)


def test_a_window_waits_for_enough_batches():
    now = [0.0]
    window = Window(lambda: now[0])
    counts = 0
    while window.add(8, 0.0) is None:
        now[0] += 2.0
        counts += 1
    assert counts >= MEASURE_BATCHES
