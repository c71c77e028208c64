"""The search for a batch size on machines that are made up: memory is a line, pace a curve, both with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.errors import InputError, UnavailableError
from fulltilt.tune.policy import NEAR, Sizes, Trial, fit_memory, knee, search

MIB = 1024**2


@dataclass
class Machine:
    """Runs sizes as asked; remembers them."""

    room: float
    fixed: float = 100 * MIB
    per_sample: float = 1 * MIB
    overhead_seconds: float = 0.01
    sample_seconds: float = 1e-4
    noise: dict[int, float] = field(default_factory=dict)
    bend: float = 0.0
    """Memory beyond the line, growing with the square of the size."""
    tried: list[Trial] = field(default_factory=list)

    def memory(self, size):
        return self.fixed + self.per_sample * size + self.bend * size * size

    def run(self, size):
        taken = self.memory(size)
        seconds = (self.overhead_seconds + self.sample_seconds * size) * (1 + self.noise.get(size % 7, 0.0))
        ran_out = taken > self.room
        trial = Trial(
            size=size,
            room_bytes=int(self.room),
            memory_bytes=None if ran_out else int(taken),
            step_seconds=None if ran_out else seconds,
            problem="out of memory" if ran_out else None,
        )
        self.tried.append(trial)
        return trial

    def search(self, sizes, **more):
        policy = search(sizes, **{"held_bytes": int(self.fixed / 3), **more})
        size = next(policy)
        while True:
            try:
                size = policy.send(self.run(size))
            except StopIteration as done:
                return done.value

    def rate(self, size):
        return size / (self.overhead_seconds + self.sample_seconds * size)


@st.composite
def grids(draw):
    low = draw(st.integers(1, 200))
    return Sizes(min_batch=low, max_batch=low + draw(st.integers(0, 3000)), step=draw(st.integers(1, 128)))


machines = st.builds(
    Machine,
    room=st.floats(50 * MIB, 5000 * MIB),
    fixed=st.floats(1 * MIB, 500 * MIB),
    per_sample=st.floats(0.001 * MIB, 20 * MIB),
    overhead_seconds=st.floats(1e-4, 0.1),
    sample_seconds=st.floats(1e-6, 1e-2),
    noise=st.dictionaries(st.integers(0, 6), st.floats(-0.2, 0.2)),
    bend=st.sampled_from([0.0, 0.0, 100.0, 5000.0]),
)


@given(grids(), machines, st.floats(0.5, 1.0))
def test_what_is_chosen_was_run_fits_and_is_the_knee(sizes, machine, safety):
    def fits(trial):
        return trial.memory_bytes is not None and trial.memory_bytes <= safety * trial.room_bytes

    if not fits(machine.run(sizes.min_batch)):
        machine.tried.clear()
        with pytest.raises(UnavailableError) as error:
            machine.search(sizes, safety=safety)
        ran = [trial.size for trial in machine.tried if fits(trial)]
        assert (f"the largest that ran is {max(ran)}:" if ran else "no smaller size ran") in str(error.value)
        return
    machine.tried.clear()
    decision = machine.search(sizes, safety=safety)
    fitting = {trial.size: trial for trial in machine.tried if fits(trial)}
    fitting = {size: trial for size, trial in fitting.items() if size in sizes}
    assert decision.value in fitting
    assert (decision.value - sizes.min_batch) % sizes.step == 0
    assert decision.value <= sizes.max_batch
    best = max(t.samples_per_second for t in fitting.values())
    assert fitting[decision.value].samples_per_second >= NEAR * best
    assert not [t for t in fitting.values() if t.size < decision.value and t.samples_per_second >= NEAR * best]
    assert len({t.size for t in machine.tried}) == len(machine.tried)
    assert len(machine.tried) <= 6 + 2 * math.log2(sizes.largest / sizes.min_batch + 1) + 4


@given(grids(), machines)
def test_on_an_honest_curve_the_choice_is_near_the_best_of_all_that_fit_and_memory_never_runs_out(sizes, machine):
    machine.noise, machine.bend = {}, 0.0
    limit = 0.9 * machine.room
    if machine.memory(sizes.min_batch) > limit:
        return
    decision = machine.search(sizes)
    assert all(trial.memory_bytes is not None and trial.memory_bytes <= limit + 2 for trial in machine.tried)
    top = max(s for s in range(sizes.min_batch, sizes.max_batch + 1, sizes.step) if machine.memory(s) <= limit)
    # Climbing ends where two doublings bring nothing, or a tenth below the end of memory: as much may be missed.
    assert machine.rate(decision.value) >= 0.93 * machine.rate(top)


def test_a_flat_curve_gives_the_smallest_size_and_is_not_climbed_to_its_end():
    machine = Machine(room=1e15, overhead_seconds=1e-6)
    decision = machine.search(Sizes(min_batch=64, max_batch=65536, step=32))
    assert decision.value == 64
    assert [trial.size for trial in machine.tried] == [64, 128, 256]


def test_sizes_double_up_to_what_memory_allows_and_the_knee_is_looked_for_between():
    machine = Machine(room=1000 * MIB, fixed=400 * MIB, overhead_seconds=0.001)
    decision = machine.search(Sizes(min_batch=64, max_batch=512, step=32), held_bytes=int(300 * MIB))
    assert [trial.size for trial in machine.tried] == [64, 128, 256, 480, 192, 160]
    assert decision.value == 192
    assert decision.reason == "the smallest within 3% of the best rate, 9,796 samples/s at 480"
    assert decision.evidence["largest_predicted"] == 480
    assert decision.evidence["bytes_per_sample"] == MIB
    assert decision.evidence["fixed_bytes"] == 400 * MIB


def test_a_large_model_is_told_from_large_samples_by_a_smaller_trial():
    machine = Machine(room=1000 * MIB, fixed=700 * MIB, overhead_seconds=0.1)
    decision = machine.search(Sizes(min_batch=64, max_batch=512, step=32), held_bytes=int(100 * MIB))
    assert [trial.size for trial in machine.tried] == [64, 32, 128, 192, 160]
    assert decision.value == 192


def test_out_of_memory_where_the_line_said_otherwise_goes_on_below():
    machine = Machine(room=1000 * MIB, bend=3000.0, overhead_seconds=1.0)
    decision = machine.search(Sizes(min_batch=64, max_batch=1024, step=32), held_bytes=int(100 * MIB))
    failed = [trial.size for trial in machine.tried if trial.memory_bytes is None]
    assert failed
    assert decision.value < min(failed)
    assert machine.memory(decision.value) <= 900 * MIB
    assert machine.memory(decision.value * 1.25) > 900 * MIB


def test_a_size_that_ran_over_the_margin_is_not_chosen():
    machine = Machine(room=200 * MIB, overhead_seconds=1.0)
    decision = machine.search(Sizes(min_batch=79, max_batch=100, step=1))
    assert machine.memory(decision.value) <= 180 * MIB


def test_room_that_others_take_in_the_meantime_counts():
    policy = search(Sizes(min_batch=64, max_batch=128, step=64), held_bytes=0)
    assert next(policy) == 64
    assert policy.send(Trial(size=64, room_bytes=1000, memory_bytes=400, step_seconds=1.0)) == 128
    with pytest.raises(StopIteration) as done:
        policy.send(Trial(size=128, room_bytes=500, memory_bytes=490, step_seconds=1.0))
    assert done.value.value.value == 64
    assert done.value.value.evidence["limit_bytes"] == 450


def test_the_smallest_that_does_not_fit_is_told_with_what_would():
    machine = Machine(room=130 * MIB)
    with pytest.raises(UnavailableError) as error:
        machine.search(Sizes(min_batch=64, max_batch=512, step=32))
    assert [trial.size for trial in machine.tried] == [64, 32, 16, 24, 20, 18, 17]
    assert str(error.value) == (
        "min_batch=64 does not fit in 0.11 GiB (90% of 0.13 GiB): out of memory; the largest that ran is 17: "
        "pass min_batch=17, and accumulate gradients over several batches"
    )


def test_nothing_fits_at_all():
    with pytest.raises(UnavailableError, match="no smaller size ran either: free memory"):
        Machine(room=50 * MIB).search(Sizes(min_batch=4, max_batch=8, step=4))


def test_the_line_through_trials():
    def trial(size, memory):
        return Trial(size=size, room_bytes=10**9, memory_bytes=memory)

    assert fit_memory([Trial(size=8, room_bytes=1, problem="out of memory")], 0) is None
    one = fit_memory([trial(10, 300)], 100)
    assert (one.fixed_bytes, one.bytes_per_sample) == (100, 20)
    two = fit_memory([trial(10, 300), trial(30, 500), Trial(size=99, room_bytes=1)], 0)
    assert (two.fixed_bytes, two.bytes_per_sample, two.largest(1000)) == (200, 10, 80)
    falling = fit_memory([trial(10, 300), trial(30, 200)], 0)
    assert falling.bytes_per_sample == 0
    assert falling.largest(1000) == math.inf
    assert falling.largest(100) == 0


def test_the_knee_is_the_smallest_near_the_best():
    trials = [Trial(size=s, room_bytes=1, step_seconds=s / r) for s, r in [(64, 960), (96, 971), (128, 1000)]]
    assert knee(trials).size == 96


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_batch": 0}, "min_batch=0 must be a whole number"),
        ({"min_batch": 2.5}, "min_batch=2.5 must be a whole number"),
        ({"step": 0}, "step=0 must be"),
        ({"max_batch": 7}, "max_batch=7 is below min_batch=8"),
    ],
)
def test_sizes_are_checked(wrong, message):
    with pytest.raises(InputError, match=message):
        Sizes(**{"min_batch": 8, "max_batch": 16, "step": 4, **wrong})


def test_sizes_lie_on_the_grid():
    sizes = Sizes(min_batch=10, max_batch=50, step=16)
    assert [sizes.largest, sizes.at_most(41.9), sizes.at_most(9), sizes.at_most(math.inf)] == [42, 26, None, 42]
    assert list(sizes.between(10, 42)) == [26]
