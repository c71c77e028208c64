"""Who may enter a full queue, when a task is tried again, what is due when: no threads, no clocks."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulltilt.assist.agenda import Agenda
from fulltilt.assist.expiry import Expiry
from fulltilt.assist.future import TaskFuture
from fulltilt.assist.policy import Priority, admit, may_replace, policy_of, priority_of, retry_seconds
from fulltilt.errors import InputError, TaskError

HIGH, NORMAL, LOW = Priority


def test_a_queue_with_room_lets_everybody_in():
    for when_full in ("wait", "drop", "refuse"):
        assert admit((9, 9, 9), LOW, full=False, when_full=when_full) == "enter"


@pytest.mark.parametrize(
    ("waiting", "newcomer", "goes"),
    [
        ((1, 1, 1), HIGH, LOW),
        ((1, 1, 0), HIGH, NORMAL),
        ((1, 0, 0), HIGH, HIGH),
        ((1, 1, 0), NORMAL, NORMAL),
        ((5, 0, 0), NORMAL, NORMAL),  # nobody there is less urgent: the newcomer
        ((5, 5, 0), LOW, LOW),
    ],
)
def test_who_is_dropped(waiting, newcomer, goes):
    assert admit(waiting, newcomer, full=True, when_full="drop") is goes


@given(st.tuples(*[st.integers(0, 3)] * 3), st.sampled_from(Priority))
def test_nobody_more_urgent_is_dropped(waiting, newcomer):
    goes = admit(waiting, newcomer, full=True, when_full="drop")
    assert goes >= newcomer
    assert not any(waiting[level] for level in Priority if level > goes)


def test_full_is_said_as_asked():
    assert admit((1, 1, 1), HIGH, full=True, when_full="wait") == "wait"
    assert admit((1, 1, 1), HIGH, full=True, when_full="refuse") == "refuse"


def test_names():
    assert [priority_of(name) for name in ("high", "normal", "low", HIGH)] == [HIGH, NORMAL, LOW, HIGH]
    with pytest.raises(InputError, match="'urgent'; it can be 'high', 'normal' or 'low'"):
        priority_of("urgent")
    with pytest.raises(InputError, match="'block'; it can be 'wait', 'drop', 'refuse'"):
        policy_of("block")


def test_back_off_doubles_up_to_a_limit():
    waits = [retry_seconds(n) for n in (1, 2, 3, 9, 10, 11)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 25.6, 30.0, 30.0])
    assert retry_seconds(100_000) == 30.0


def test_threads_left_behind_are_limited():
    assert may_replace(7, workers=2)
    assert not may_replace(8, workers=2)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=50), st.floats(0, 100))
def test_the_agenda_gives_what_is_due_in_order(entries, now):
    agenda, expected = Agenda(), []
    for number, (when, crossed_out) in enumerate(entries):
        entry = agenda.add(when, lambda n=number: n)
        if crossed_out:
            agenda.cross_out(entry)
            agenda.cross_out(entry)  # once is enough
        elif when <= now:
            expected.append((when, number))
    assert [action() for action in agenda.due(now)] == [number for _, number in sorted(expected)]
    later = [when for when, crossed_out in entries if not crossed_out and when > now]
    assert agenda.next_time() == min(later, default=None)
    assert len(agenda) == len(later)


def test_the_agenda_does_not_grow_with_what_is_crossed_out():
    agenda = Agenda()
    kept = [agenda.add(1e6, int) for _ in range(10)]
    for n in range(50_000):
        agenda.cross_out(agenda.add(float(n + 2e6), int))
        assert len(agenda._entries) <= 1100
    assert len(agenda) == len(kept)


def finished(value):
    future = TaskFuture("t")
    future.begin()
    future.finish(value)
    return future


def test_results_that_nobody_asked_for_expire():
    expiry = Expiry(10.0)
    old, read, young = finished("a"), finished("b"), finished("c")
    assert read.result() == "b"
    for future, now in ((old, 0.0), (read, 0.0), (young, 8.0)):
        expiry.add(future, now)
    expiry.add(finished("d"), 11.0)
    with pytest.raises(TaskError, match="'t' was not collected in time and has expired"):
        old.result()
    assert read.result() == "b"
    assert young.result() == "c"


def test_futures_that_are_gone_are_forgotten():
    expiry = Expiry(1e9)
    for n in range(20_000):
        expiry.add(finished(n), float(n))
    gc.collect()
    assert len(expiry) <= 4096
    assert expiry._keep == 1e9


def test_without_a_limit_nothing_is_noted():
    expiry = Expiry(None)
    expiry.add(finished(1), 0.0)
    assert len(expiry) == 0


def test_old_results_go_without_a_look_at_all_others():
    looked = 0

    class Watched(TaskFuture):
        __slots__ = ()

        def expire(self):
            nonlocal looked
            looked += 1
            super().expire()

    expiry, held = Expiry(1000.0), []
    for n in range(5000):
        held.append(Watched("t"))
        held[-1].finish(n)
        expiry.add(held[-1], float(n))
    assert looked == 5000 - len(expiry)
    assert len(expiry) in (1000, 1001)
    assert held[-1].result() == 4999


def test_what_failed_lets_go_of_its_frames():
    class Large:
        pass

    large = Large()
    gone = weakref.ref(large)

    def fail(held):
        raise OSError("no")

    future = TaskFuture("t")
    try:
        fail(large)
    except OSError as error:
        told = TaskError("it failed", task="t")
        told.__cause__ = error
        future.finish(error=told)
    del large, told
    gc.collect()
    assert gone() is not None
    expiry = Expiry(1.0)
    expiry.add(future, 0.0)
    expiry.add(finished(1), 5.0)
    gc.collect()
    assert gone() is None
    assert "no" in str(future.exception().__cause__)
