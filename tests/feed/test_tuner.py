"""The search for a number of workers, against machines made of formulas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulltilt.feed.tuner import (
    FIRST_TRIALS,
    MARGIN,
    MEASURE_BATCHES,
    MEASURE_SECONDS,
    SETTLE_SECONDS,
    SLACK,
    TRIALS,
    Tuner,
    Window,
)

WHOLE = SETTLE_SECONDS + MEASURE_SECONDS
MOST = TRIALS + FIRST_TRIALS + 1
"""Observations until a decision, at most."""


def run(tuner: Tuner, rate_of, limit: float, cores_of=lambda workers: None) -> int:
    """Tune on a machine whose feed reaches rate_of(workers), under a training limit."""
    for _ in range(MOST):
        if tuner.decision is not None:
            break
        feed = rate_of(tuner.workers)
        rate = min(feed, limit)
        tuner.observe(rate, max(0.0, 1.0 - feed / limit) if feed < limit else 0.0, cores_of(tuner.workers))
    assert tuner.decision is not None
    assert tuner.decision.value == tuner.workers
    return tuner.workers


@given(st.integers(1, 64), st.integers(1, 64), st.floats(10, 1000), st.floats(50, 50_000))
def test_it_ends_near_the_best_of_an_exhaustive_search(start, most, per_worker, limit):
    chosen = run(Tuner(start, most), lambda workers: workers * per_worker, limit)
    best = max(min(workers * per_worker, limit) for workers in range(1, most + 1))
    assert min(chosen * per_worker, limit) >= 0.95 * best
    assert 1 <= chosen <= most


class Machine:
    """Cores that workers, and the thread that trains, have to share; and a source that each sample waits for."""

    def __init__(self, *, cores, cpu, wait, source, step, crowding):
        self.cores, self.cpu, self.wait, self.source, self.step, self.crowding = (
            cores,
            cpu,
            wait,
            source,
            step,
            crowding,
        )

    def feed(self, workers: int) -> float:
        """Samples a second of so many workers: each takes CPU time and waits; the source gives only so many."""
        computed = min(workers / (self.cpu + self.wait), self.cores / self.cpu)
        crowd = max(0.0, computed * self.cpu + 1 - self.cores) if workers > self.cores else 0.0
        return min(computed, self.source) * (1 - self.crowding * min(crowd, 8) * (workers - self.cores) / workers)

    def used(self, workers: int) -> float:
        return min(self.rate(workers) * self.cpu, self.cores)

    def limit(self, workers: int) -> float:
        """The training's own rate, slower where workers take its core."""
        busy = min(workers * self.cpu / (self.cpu + self.wait), self.cores)
        return min(1.0, self.cores / (busy + 1)) / self.step if self.crowding else 1 / self.step

    def rate(self, workers: int) -> float:
        return min(self.feed(workers), self.limit(workers))

    def waiting(self, workers: int) -> float:
        return max(0.0, 1.0 - self.feed(workers) / self.limit(workers))


@settings(max_examples=1000)
@given(
    cores=st.sampled_from([1, 2, 4, 8, 16, 32]),
    cpu=st.floats(1e-4, 2e-2),
    wait=st.sampled_from([0.0, 0.0, 1e-3, 5e-3, 5e-2]),
    source=st.floats(50, 20_000),
    step=st.floats(1e-4, 1e-2),
    crowding=st.sampled_from([0.0, 0.02, 0.1]),
    noise=st.lists(st.floats(-0.005, 0.005), min_size=MOST, max_size=MOST),
    data=st.data(),
)
def test_automatic_is_within_5_percent_of_the_grid_and_2_of_ones_own(
    cores, cpu, wait, source, step, crowding, noise, data
):
    machine = Machine(cores=cores, cpu=cpu, wait=wait, source=source, step=step, crowding=crowding)
    own = data.draw(st.integers(1, 2 * cores), label="own setting")
    tuner = Tuner(own, max(own, cores), beyond=4 * cores, confirm=data.draw(st.booleans(), label="confirm"))
    for error in noise:
        if tuner.settled:
            break
        n = tuner.workers
        tuner.observe(machine.rate(n) * (1 + error), machine.waiting(n), machine.used(n))
    assert tuner.decision is not None
    best = max(machine.rate(n) for n in range(1, 4 * cores + 1))
    assert machine.rate(tuner.workers) >= 0.95 * best
    assert machine.rate(tuner.workers) >= (1 - MARGIN - 0.01) * machine.rate(own), "noise of half a percent either way"


def test_workers_that_wait_may_be_more_than_the_cores_and_those_that_compute_not():
    def slow(workers):  # 5 ms of waiting a sample
        return workers * 200

    idle = Tuner(3, 4, beyond=16)
    assert run(idle, slow, 2400, cores_of=lambda workers: workers * 0.05) == 12
    busy = Tuner(3, 4, beyond=16)
    assert run(busy, slow, 2400, cores_of=lambda workers: min(workers, 4.0)) == 4
    unknown = Tuner(3, 4, beyond=16)
    assert run(unknown, slow, 2400) == 4


def test_what_is_worth_a_trial_in_any_case_is_tried():
    def handing_over(workers):  # cheap samples: a worker costs more than it brings
        return 4000 + 500 * workers if workers else 20_000

    assert run(Tuner(4, 8, least=0), handing_over, 30_000) > 0, "the way down to it gets worse"
    assert run(Tuner(4, 8, least=0, also=(0,)), handing_over, 30_000) == 0


def test_a_feed_that_binds_and_still_grows_is_not_tried_with_fewer():
    tuner = Tuner(2, 8)
    assert run(tuner, lambda workers: workers * 100, 5000) == 8
    assert [trial.workers for trial in tuner.trials] == [2, 8]


@pytest.mark.parametrize(("again", "kept"), [(800, 8), (809, 8), (830, 4)])
def test_somebody_s_own_number_is_measured_again_before_another_is_kept(again, kept):
    tuner = Tuner(4, 8, confirm=True)
    for rate in (400, 400, 800):  # 4 twice, then 8
        tuner.observe(rate, 0.5)
    assert not tuner.settled
    assert tuner.workers == 4
    tuner.observe(again, 0.5)
    assert tuner.decision.value == tuner.workers == kept
    assert ("no faster when the first number was measured again" in tuner.decision.reason) is (kept == 4)


def test_none_at_all_is_tried_where_it_may_be():
    assert run(Tuner(2, 4, least=0), lambda workers: 900 if workers else 1000, 900) == 0
    assert run(Tuner(0, 4, least=0), lambda workers: 100 + 400 * workers, 900) == 2
    assert run(Tuner(2, 4), lambda workers: 1000, 900) == 1


def test_a_first_measurement_while_training_warms_up_is_taken_again():
    tuner = Tuner(4, 8)
    for rate in (200.0, 900.0):
        assert tuner.observe(rate, 0.5) == 4
        assert not tuner.trials
    tuner.observe(905.0, 0.5)
    assert [(trial.workers, trial.rate) for trial in tuner.trials] == [(4, 905.0)]


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


@given(st.integers(4, 64), st.floats(300, 900), st.floats(0.3, 0.95))
def test_workers_that_only_just_keep_up_are_not_enough(most, per_worker, load):
    """When they can do a little less, as on a warmer day, training goes on at its rate."""
    limit = load * most * per_worker

    def busy(workers):
        return min(workers, limit / per_worker)

    chosen = run(Tuner(most - 1, most), lambda workers: workers * per_worker, limit, busy)
    assert chosen == most or SLACK * chosen * per_worker >= limit * (1 - MARGIN)
    assert chosen * per_worker <= 1.45 * limit or chosen <= 3, "and no more than need be"


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
    for _ in range(round(15 * WHOLE)):
        now[0] += 0.1
        if (found := window.add(32, 0.05)) is not None:
            measured.append((now[0], *found))
    assert len(measured) == 1
    at, rate, wait = measured[0]
    assert at == pytest.approx(WHOLE + 0.1, abs=0.2)
    assert rate == pytest.approx(320, rel=0.01)
    assert wait == pytest.approx(0.5, rel=0.01)


def test_a_pause_between_epochs_does_not_count_and_a_loop_broken_off_begins_anew():
    now = [0.0]
    window = Window(lambda: now[0])

    def measured(steps, *, pause_at=-1):
        for k in range(steps):
            now[0] += 0.1
            if (found := window.add(32, 0.05)) is not None:
                return found
            if k == pause_at:
                window.pause()
                now[0] += 100.0
                window.go_on()
        return None

    rate, wait = measured(round(15 * WHOLE), pause_at=round(6 * WHOLE))
    assert rate == pytest.approx(320, rel=0.01)
    assert wait == pytest.approx(0.5, rel=0.01)
    assert measured(round(7 * WHOLE)) is None
    window.go_on()
    assert measured(round(9 * WHOLE)) is None
    assert measured(round(3 * WHOLE)) is not None


def test_a_window_waits_for_enough_batches():
    now = [0.0]
    window = Window(lambda: now[0])
    for wanted in (MEASURE_BATCHES, 30):
        window.restart(batches=wanted)
        counts = 0
        while window.add(8, 0.0) is None:
            now[0] += 2.0
            counts += 1
        assert counts >= wanted
