from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.measure.timeline import (
    AFTER_BACKWARD,
    AFTER_FORWARD,
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
    waited_ns,
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
    return Timeline(clock, cpu_clock=clock)  # it computes all the time


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
    timeline.leave_for(AFTER_FORWARD)
    clock.pass_(4)
    timeline.enter(BACKWARD)
    assert timeline.unsettled()
    timeline.settle(FORWARD)
    clock.pass_(20)
    timeline.leave_for(AFTER_BACKWARD)
    clock.pass_(2)
    assert timeline.begin_step()
    clock.pass_(5)
    timeline.end_step(entered=True)
    clock.pass_(1)
    record = timeline.step()
    assert [record.phases_ns[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER, OTHER)] == [14, 20, 5, 3]


@pytest.mark.parametrize(("sees_steps", "alone"), [(True, True), (False, True), (True, False)])
def test_what_lies_behind_a_backward_is_the_scripts_own_unless_a_step_or_a_rank_may_be_among_it(
    timeline: Timeline, clock: Clock, *, sees_steps: bool, alone: bool
) -> None:
    timeline.sees_steps, timeline.alone = sees_steps, alone
    timeline.enter(BACKWARD)
    timeline.leave_for(AFTER_BACKWARD)
    clock.pass_(4)
    timeline.cut()  # the next micro-batch, say
    timeline.enter(BACKWARD)
    timeline.leave_for(AFTER_BACKWARD)
    clock.pass_(3)
    record = timeline.step()
    assert record.phases_ns[OTHER if sees_steps and alone else OPTIMIZER] == 7


def forward(timeline: Timeline, clock: Clock, spent: int, *, between: int) -> None:
    timeline.enter(FORWARD)
    timeline.settle(between)
    clock.pass_(spent)
    timeline.leave_for(AFTER_FORWARD)


def test_what_lies_between_two_forwards_is_what_the_second_tells(timeline: Timeline, clock: Clock) -> None:
    forward(timeline, clock, 10, between=OTHER)
    clock.pass_(30)  # an environment's step
    within(timeline, clock, SYNC, 5)
    clock.pass_(3)
    forward(timeline, clock, 10, between=OTHER)
    clock.pass_(4)
    forward(timeline, clock, 1, between=FORWARD)  # a loss function
    clock.pass_(2)
    record = timeline.step()
    assert [record.phases_ns[phase] for phase in (FORWARD, SYNC, OTHER)] == [27, 5, 33]


def test_what_lies_between_a_backward_and_the_next_forward_is_no_optimizers(timeline: Timeline, clock: Clock) -> None:
    for _ in range(2):
        forward(timeline, clock, 10, between=OTHER)
        timeline.enter(BACKWARD)
        timeline.settle(FORWARD)
        clock.pass_(20)
        timeline.leave_for(AFTER_BACKWARD)
        clock.pass_(7)
    assert timeline.begin_step()
    clock.pass_(5)
    record = timeline.step()
    assert [record.phases_ns[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER, OTHER)] == [20, 40, 5, 14]


def test_what_follows_a_step_that_does_not_count_is_none_of_it(timeline: Timeline, clock: Clock) -> None:
    timeline.enter(BACKWARD)
    timeline.leave_for(AFTER_BACKWARD)
    timeline.end_step(entered=timeline.begin_step())
    clock.pass_(9)
    assert timeline.step().phases_ns[OTHER] == 9


def test_a_loss_is_computed_and_what_is_waited_for_is_none(clock: Clock) -> None:
    cpu = Clock()
    timeline = Timeline(clock, cpu_clock=cpu)
    forward(timeline, clock, 10, between=OTHER)
    clock.pass_(100)
    cpu.pass_(5)
    timeline.enter(BACKWARD)
    timeline.settle(FORWARD)
    timeline.leave_for(AFTER_BACKWARD)
    record = timeline.step()
    assert [record.phases_ns[phase] for phase in (FORWARD, OTHER)] == [15, 95]
    timeline.alone = False  # another rank may be what is waited for
    forward(timeline, clock, 10, between=OTHER)
    clock.pass_(100)
    timeline.enter(BACKWARD)
    timeline.settle(FORWARD)
    assert timeline.step().phases_ns[FORWARD] == 110


@pytest.mark.parametrize(("cpu", "waited"), [(0, 100), (20, 80), (25, 0), (60, 0), (300, 0)])
def test_a_core_that_others_keep_busy_makes_no_loss_a_wait(cpu: int, waited: int) -> None:
    assert waited_ns(100, cpu) == waited


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
    forward(timeline, clock, 4, between=OTHER)
    timeline.enter(BACKWARD)
    timeline.leave_for(AFTER_BACKWARD)
    clock.pass_(2)  # where to go on, as LBFGS finds out
    forward(timeline, clock, 6, between=OTHER)
    clock.pass_(4)  # the loss
    timeline.enter(BACKWARD)
    timeline.settle(FORWARD)
    clock.pass_(20)
    timeline.leave_for(AFTER_BACKWARD)
    clock.pass_(4)
    record = timeline.step()
    timeline.end_step(entered=True)
    clock.pass_(3)
    following = timeline.rest()
    assert [record.phases_ns[phase] for phase in (FORWARD, BACKWARD, OPTIMIZER, OTHER)] == [14, 20, 7, 0]
    assert following.phases_ns[OTHER] == 3


def test_a_closure_that_failed_in_its_loss_does_not_keep_the_time(timeline: Timeline, clock: Clock) -> None:
    timeline.begin_step()
    timeline.enter(FORWARD)
    timeline.leave_for(AFTER_FORWARD)
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
        st.tuples(st.just("leave_for"), st.sampled_from([AFTER_FORWARD, AFTER_BACKWARD, OTHER])),
        st.tuples(st.just("settle"), st.sampled_from([FORWARD, OTHER])),
        st.tuples(st.sampled_from(["begin_step", "compute"]), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 1000)),
    ),
    max_size=60,
)


@given(events)
def test_all_phases_add_up_to_the_wall_time(happening: list[tuple[str, int]]) -> None:
    clock, cpu = Clock(), Clock()
    timeline = Timeline(clock, cpu)
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
        elif what == "settle":
            timeline.settle(value)
        elif what == "begin_step":
            timeline.end_step(entered=timeline.begin_step())
        elif what == "compute":
            cpu.pass_(100)
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
