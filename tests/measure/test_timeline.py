from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.measure.timeline import (
    BACKWARD,
    CHECKPOINT,
    DATA_WAIT,
    EPOCH_START,
    EVAL,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PHASES,
    SYNC,
    Timeline,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def pass_(self, nanoseconds: int) -> None:
        self.now += nanoseconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    return Timeline(clock)


def within(timeline: Timeline, clock: Clock, phase: int, spent: int) -> None:
    timeline.enter(phase)
    clock.pass_(spent)
    timeline.leave()


def test_time_counts_for_the_innermost_phase_alone(timeline: Timeline, clock: Clock) -> None:
    timeline.enter(FORWARD)
    clock.pass_(10)
    within(timeline, clock, SYNC, 5)
    clock.pass_(10)
    timeline.leave()
    clock.pass_(3)
    record = timeline.step()
    assert record.phases_ns[FORWARD] == 20
    assert record.phases_ns[SYNC] == 5
    assert record.phases_ns[OTHER] == 3


def test_a_loss_between_forward_and_backward_is_forward(timeline: Timeline, clock: Clock) -> None:
    timeline.enter(FORWARD)
    clock.pass_(10)
    timeline.leave_for(FORWARD)
    clock.pass_(4)
    timeline.enter(BACKWARD)
    clock.pass_(20)
    timeline.leave_for(OPTIMIZER)
    clock.pass_(2)
    timeline.enter(OPTIMIZER)
    clock.pass_(5)
    timeline.leave_for(OTHER)
    clock.pass_(1)
    record = timeline.step()
    assert [record.phases_ns[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER, OTHER)] == [14, 20, 7, 1]


def test_a_forward_that_nobody_takes_a_gradient_of_makes_its_whole_span_evaluation(
    timeline: Timeline, clock: Clock
) -> None:
    within(timeline, clock, OPTIMIZER, 1)
    first = timeline.step()
    for _ in range(3):
        timeline.cut()
        within(timeline, clock, DATA_WAIT, 5)
        timeline.evaluated = True
        within(timeline, clock, EVAL, 10)
        within(timeline, clock, SYNC, 2)
        clock.pass_(3)
    timeline.cut()  # the next training batch
    assert timeline.evaluating
    within(timeline, clock, DATA_WAIT, 7)
    timeline.trained = True
    record = timeline.step()
    assert sum(first.outside_ns) == 0
    assert record.outside_ns[EVAL] == 3 * 20
    assert record.phases_ns[DATA_WAIT] == 7
    assert record.step_ns == 7


def test_a_teachers_forward_in_a_step_is_forward(timeline: Timeline, clock: Clock) -> None:
    timeline.cut()
    timeline.evaluated = True
    within(timeline, clock, EVAL, 10)
    within(timeline, clock, FORWARD, 10)
    timeline.trained = True
    record = timeline.step()
    assert record.phases_ns[FORWARD] == 20
    assert record.outside_ns[EVAL] == 0


def test_what_follows_the_end_of_an_evaluations_loader_belongs_to_it(timeline: Timeline, clock: Clock) -> None:
    timeline.cut()
    timeline.evaluated = True
    within(timeline, clock, EVAL, 10)
    timeline.cut()
    timeline.ended = True
    clock.pass_(6)
    within(timeline, clock, CHECKPOINT, 8)
    timeline.cut()
    timeline.trained = True
    record = timeline.step()
    assert record.outside_ns[EVAL] == 16
    assert record.outside_ns[CHECKPOINT] == 8
    assert record.step_ns == 0


def test_checkpoints_and_starts_of_epochs_are_no_part_of_a_step(timeline: Timeline, clock: Clock) -> None:
    within(timeline, clock, EPOCH_START, 50)
    within(timeline, clock, CHECKPOINT, 30)
    within(timeline, clock, FORWARD, 10)
    record = timeline.step()
    assert record.step_ns == 10
    assert record.outside_ns[EPOCH_START] == 50
    assert record.outside_ns[CHECKPOINT] == 30


def test_time_charged_afterwards(timeline: Timeline, clock: Clock) -> None:
    clock.pass_(5)
    began = clock()
    clock.pass_(7)
    assert timeline.charge(SYNC, began) == 7
    clock.pass_(1)
    record = timeline.step()
    assert record.phases_ns[SYNC] == 7
    assert record.phases_ns[OTHER] == 6


def test_an_optimizer_that_failed_does_not_keep_the_time(timeline: Timeline, clock: Clock) -> None:
    timeline.enter(OPTIMIZER)
    clock.pass_(5)
    timeline.cut()  # its end was never seen
    clock.pass_(9)
    record = timeline.step()
    assert record.phases_ns[OPTIMIZER] == 5
    assert record.phases_ns[OTHER] == 9


def test_a_closures_loss_and_what_follows_its_backward_are_told_apart(timeline: Timeline, clock: Clock) -> None:
    assert timeline.begin_step()
    clock.pass_(1)
    timeline.enter(FORWARD)
    clock.pass_(10)
    timeline.leave_for(FORWARD)
    clock.pass_(4)  # the loss
    timeline.enter(BACKWARD)
    clock.pass_(20)
    timeline.leave_for(OPTIMIZER)
    clock.pass_(6)
    record = timeline.step()
    timeline.leave_for(OTHER)
    clock.pass_(3)
    following = timeline.rest()
    assert [record.phases_ns[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER, OTHER)] == [14, 20, 7, 0]
    assert following.phases_ns[OTHER] == 3


def test_a_closure_that_failed_in_its_loss_does_not_keep_the_time(timeline: Timeline, clock: Clock) -> None:
    timeline.begin_step()
    timeline.enter(FORWARD)
    timeline.leave_for(FORWARD)
    clock.pass_(4)
    timeline.cut()  # the next batch
    clock.pass_(9)
    record = timeline.step()
    assert record.phases_ns[FORWARD] == 4
    assert record.phases_ns[OTHER] == 9


def test_a_backward_inside_of_a_forward_leaves_it_a_forward(timeline: Timeline, clock: Clock) -> None:
    timeline.enter(FORWARD)
    timeline.enter(BACKWARD)
    clock.pass_(5)
    timeline.leave_for(OPTIMIZER)
    clock.pass_(2)
    timeline.leave_for(FORWARD)
    record = timeline.step()
    assert record.phases_ns[FORWARD] == 2


def test_what_nobody_watched_is_no_part_of_a_step(timeline: Timeline, clock: Clock) -> None:
    timeline.step()
    timeline.evaluated = True
    within(timeline, clock, EVAL, 40)
    timeline.cut()
    clock.pass_(60)
    timeline.resume()
    within(timeline, clock, FORWARD, 5)
    record = timeline.step()
    assert record.step_ns == 5
    assert sum(record.outside_ns) == 0
    assert not record.beside
    assert record.began_ns == 100


events = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, len(PHASES) - 1)),
        st.tuples(st.sampled_from(["leave", "cut", "step", "evaluated", "trained", "ended"]), st.just(0)),
        st.tuples(st.just("leave_for"), st.sampled_from([FORWARD, OPTIMIZER, OTHER])),
        st.tuples(st.just("pass"), st.integers(1, 1000)),
    ),
    max_size=60,
)


@given(events)
def test_all_phases_add_up_to_the_wall_time(happening: list[tuple[str, int]]) -> None:
    clock = Clock()
    timeline = Timeline(clock)
    records = []
    for what, value in happening:
        if what == "enter":
            timeline.enter(value)
        elif what == "leave":
            timeline.leave()
        elif what == "cut":
            timeline.cut()
        elif what == "step":
            records.append(timeline.step())
        elif what == "leave_for":
            timeline.leave_for(value)
        elif what == "pass":
            clock.pass_(value)
        else:
            setattr(timeline, what, True)
    records.append(timeline.rest())
    assert sum(record.step_ns + sum(record.outside_ns) for record in records) == clock()


def test_spans_of_a_kind_are_summed_up_so_that_a_long_evaluation_takes_no_memory(
    timeline: Timeline, clock: Clock
) -> None:
    for _ in range(1000):
        timeline.cut_for(DATA_WAIT)
        clock.now += 2
        timeline.leave()
        timeline.evaluated = True
        clock.now += 3
    timeline.cut()
    clock.now += 4
    record = timeline.step()
    assert len(record.spans) <= 3
    assert record.outside_ns[EVAL] + sum(record.phases_ns) == 5 * 1000 + 4
    assert record.outside_ns[EVAL] == 5 * 1000
