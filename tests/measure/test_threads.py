"""One thread and several by turns: what waits gains, what holds the lock does not, bad turns don't count."""

from __future__ import annotations

import threading
import time

import pytest

from fulltilt.measure import threads
from fulltilt.measure.threads import Compared, Turn, compare_threads, take_turn


def test_the_best_turns_are_compared_and_the_middle_one_tells_the_cost():
    alone = tuple(Turn(calls=calls, seconds=0.05) for calls in (5, 4, 1))
    together = tuple(Turn(calls=calls, seconds=0.05) for calls in (2, 19, 20))
    compared = Compared(alone=alone, together=together)
    assert compared.speedup == 4
    assert compared.seconds_per_call == pytest.approx(0.05 / 4)


def test_what_waits_gains_and_what_holds_the_lock_does_not(hours):
    waiting = compare_threads(lambda: hours.sleep(0.01), 4)
    assert waiting.speedup == pytest.approx(4)
    assert waiting.seconds_per_call == pytest.approx(0.01)
    assert compare_threads(lambda: hours.hold(0.01), 4).speedup == pytest.approx(1)


def test_threads_are_there_at_the_same_time(monkeypatch):
    monkeypatch.setattr(threads, "TURN_SECONDS", 0.0)  # one call each
    meeting = threading.Barrier(4)
    assert take_turn(lambda: meeting.wait(60), 4).calls == 4


def test_each_thread_calls_once_however_long_it_takes(monkeypatch):
    monkeypatch.setattr(threads, "TURN_SECONDS", 0.001)
    assert take_turn(lambda: time.sleep(0.1), 3).calls == 3


def test_a_long_call_is_not_repeated_beyond_the_time(monkeypatch):
    monkeypatch.setattr(threads, "LOOK_SECONDS", 0.001)
    calls = []
    compared = compare_threads(lambda: calls.append(time.sleep(0.06)), 2)
    assert (len(compared.alone), len(compared.together), len(calls)) == (1, 1, 3)


@pytest.mark.parametrize(
    ("together", "turns"),
    [
        ([20, 20, 20], 3),
        ([8, 20, 9, 8, 10, 19, 20], 6),  # only twice was it left alone
        ([20, *range(1, 18)], 15),  # never again: not for ever
    ],
)
def test_who_was_disturbed_is_looked_at_for_longer(monkeypatch, together, turns):
    following = iter(together)

    def turn(_, count):
        return Turn(calls=next(following) if count > 1 else 10, seconds=0.05)

    monkeypatch.setattr(threads, "take_turn", turn)
    compared = compare_threads(lambda: None, 2)
    assert len(compared.together) == turns
    assert compared.speedup == 2
