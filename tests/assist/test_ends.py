"""Every task comes to an end that somebody can see: whatever is closed, late, tried again or full."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import pairwise
from random import Random
from unittest.mock import Mock

import pytest
from tests.waiting import until

from fulltilt import AsyncDataProcessor, CPUAssistedTraining
from fulltilt.assist import assisted, policy, pool
from fulltilt.errors import InputError, QueueFullError, TaskError, TaskTimeoutError


@pytest.fixture
def stuck():
    """A task that does not end before the test does."""
    opened = threading.Event()
    yield lambda: opened.wait(60)
    opened.set()


def fail():
    raise OSError("the disk is gone")


def seconds_of(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_close_cancels_what_waits_for_its_next_try(monkeypatch):
    monkeypatch.setattr(pool, "retry_seconds", lambda failures: 60.0)
    assist = CPUAssistedTraining(1)
    future = assist.submit(fail, retries=1)
    until(lambda: assist.stats().postponed)
    assist.close(cancel=True)
    with pytest.raises(CancelledError, match="cancelled before it was tried again"):
        future.result(0)


def test_close_does_not_wait_for_threads_in_tasks_past_their_time(stuck, caplog):
    assist = CPUAssistedTraining(1)
    assert isinstance(assist.submit(stuck, timeout=0.3).exception(10), TaskTimeoutError)
    done = assist.submit(int, "7")
    assert seconds_of(assist.close) < 10
    assert done.result(0) == 7
    assert "left behind" in caplog.text


def test_timeouts_go_on_while_close_waits(stuck):
    assist = CPUAssistedTraining(1)
    running = assist.submit(stuck, timeout=0.5)
    until(running.running)
    assert seconds_of(lambda: assist.close(cancel=True)) < 10
    assert isinstance(running.exception(0), TaskTimeoutError)


def test_close_when_no_worker_is_left_that_could_work(stuck, monkeypatch):
    monkeypatch.setattr(policy, "ABANDONED_PER_WORKER", 1)
    assist = CPUAssistedTraining(1)
    for _ in range(2):
        late = assist.submit(stuck, timeout=0.3)
        until(lambda late=late: late.running() or late.done())
        late.exception(10)
    waiting = assist.submit(int)
    assert seconds_of(assist.close) < 10
    assert waiting.cancelled()


def test_after_close_every_future_is_done(stuck):
    assist = CPUAssistedTraining(1)
    running = assist.submit(stuck)
    until(running.running)
    assist.close(timeout=0.05)
    with pytest.raises(TaskError, match="still running when its pool was closed"):
        running.result(0)


@pytest.mark.parametrize("kind", [CPUAssistedTraining, AsyncDataProcessor])
def test_an_error_in_the_block_is_not_held_up_by_a_task_that_hangs(kind, stuck, monkeypatch):
    monkeypatch.setattr(assisted, "EXIT_SECONDS", 0.05)
    running = []

    def interrupted():
        with kind(1, preprocess=lambda batch: stuck()) as made:
            task = made._assist if kind is AsyncDataProcessor else made
            running.append(task.submit("data_preprocessing", 1))
            until(running[0].running)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "left behind" in str(running[0].exception(0))


def test_a_task_waits_for_one_of_its_own_that_is_tried_again(monkeypatch):
    monkeypatch.setattr(pool, "retry_seconds", lambda failures: 0.05)
    tries = []

    def flaky():
        tries.append(time.perf_counter())
        if len(tries) < 3:
            raise OSError("not yet")
        return "through"

    with CPUAssistedTraining(1) as assist:
        outer = assist.submit(lambda: assist.submit(flaky, retries=2).result())
        assert outer.result(10) == "through"
        assert all(after - before >= 0.05 for before, after in pairwise(tries))
        stats = assist.stats()
        assert (stats.done, stats.failed, stats.retried) == (2, 0, 2)
        assert stats.busy_seconds <= stats.wall_seconds  # the time of the inner one is not counted twice


def test_a_task_in_a_task_that_takes_too_long_is_replaced(stuck):
    with CPUAssistedTraining(1) as assist:
        assist.submit(lambda: assist.submit(stuck, timeout=0.3).result())
        assert assist.submit(int, "7").result(10) == 7


def test_a_timeout_holds_while_there_is_no_room(stuck):
    assist = CPUAssistedTraining(1, queue_size=1)
    until(assist.submit(stuck).running)
    assist.submit(int)
    found = []
    assert seconds_of(lambda: found.append(assist.submit(int, timeout=0.1))) < 10
    assert isinstance(found[0].exception(10), TaskTimeoutError)
    assert assist.stats().waiting["normal"] == 1
    assist.close(cancel=True, timeout=0.05)


def test_a_callback_of_a_timeout_never_waits_for_room(stuck):
    told = []
    assist = CPUAssistedTraining(1, queue_size=1)

    def again(_):
        try:
            while True:
                assist.submit(int)
        except QueueFullError as error:
            told.append(str(error))

    until(assist.submit(stuck, timeout=1.0).running)
    waiting = assist.submit(int, timeout=0.1)
    waiting.add_done_callback(again)
    until(lambda: told)
    assert "outside of tasks and callbacks" in told[0]
    assert assist.submit(int, "7", timeout=30).result() == 7  # the clock went on, and replaced the worker
    assist.close()


def test_a_callback_of_a_timeout_that_hangs_holds_up_no_other(stuck):
    assist = CPUAssistedTraining(2)
    first = assist.submit(stuck, timeout=0.05)
    first.add_done_callback(lambda _: stuck())
    assert isinstance(first.exception(10), TaskTimeoutError)
    assert isinstance(assist.submit(stuck, timeout=0.05).exception(10), TaskTimeoutError)
    assert seconds_of(assist.close) < 10


@pytest.mark.parametrize("seconds", [float("inf"), 1e10])
def test_times_that_never_come(seconds, stuck):
    with CPUAssistedTraining(1) as assist:
        assert assist.submit(int, "7", timeout=seconds).result(seconds) == 7
        assert isinstance(assist.submit(stuck, timeout=0.05).exception(10), TaskTimeoutError)


def test_a_result_that_expires_while_it_is_asked_for_is_never_another():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with CPUAssistedTraining(4, keep_seconds=1e-9) as assist:
            for _ in range(20):
                for future in [assist.submit(int, "7") for _ in range(100)]:
                    try:
                        outcome = future.result(10)
                    except TaskError as error:
                        outcome = error
                    assert outcome == 7 or "expired" in str(outcome)
    finally:
        sys.setswitchinterval(before)


def test_an_error_that_can_not_be_told():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def fail_mutely():
        raise MuteError

    with CPUAssistedTraining(1) as assist:
        with pytest.raises(
            TaskError, match=r"'fail_mutely' failed: MuteError: \(its text could not be made: .*no words"
        ):
            assist.submit(fail_mutely).result(10)
        assert assist.stats().replaced_workers == 0


def test_a_newcomer_that_is_dropped_is_told_why(stuck):
    assist = CPUAssistedTraining(1, queue_size=1, when_full="drop")
    until(assist.submit(stuck).running)
    assist.submit(int, priority="high")
    with pytest.raises(TaskError, match="nothing less urgent could make room"):
        assist.submit(int, priority="low").result(0)
    assist.close(cancel=True, timeout=0.01)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_future_is_done_after_close(seed, monkeypatch):
    """Tasks that fail, nap, wait for others, give up; submitters that cancel; close() in the middle of it."""
    monkeypatch.setattr(pool, "retry_seconds", lambda failures: 0.002)
    draw, futures = Random(seed), []
    assist = CPUAssistedTraining(
        draw.randint(1, 3),
        queue_size=draw.choice([1, 2, 100]),
        when_full=draw.choice(["wait", "drop", "refuse"]),
        keep_seconds=draw.choice([None, 1e-4]),
    )

    def submit(own, depth):
        future = assist.submit(
            task, own.random(), depth, retries=own.choice([0, 2]), timeout=own.choice([None, 0.003, 5])
        )
        futures.append(future)
        if own.random() < 0.2:
            future.cancel()
        elif own.random() < 0.3:
            future.add_done_callback(lambda _: task(own.random(), depth))
        elif own.random() < 0.5:
            future.exception(own.choice([None, 0.002]))

    def task(seed, depth):
        own = Random(seed)
        if own.random() < 0.3:
            raise OSError("not now")
        if own.random() < 0.3:
            time.sleep(0.003)
        if depth:
            submit(own, depth - 1)

    def submitter(seed):
        own = Random(seed)
        for _ in range(20):
            with suppress(InputError, TaskError):  # full, closed, or no result in time
                submit(own, 2)

    submitters = [threading.Thread(target=submitter, args=(draw.random(),)) for _ in range(3)]
    for thread in submitters:
        thread.start()
    if draw.random() < 0.5:
        time.sleep(0.02)
    else:
        for thread in submitters:
            thread.join(30)
    assist.close(cancel=draw.random() < 0.5, timeout=draw.choice([None, 0.01]))
    for thread in submitters:
        thread.join(30)
        assert not thread.is_alive()
    until(lambda: all(future.done() for future in futures))  # a worker may just have taken one when it was closed
    stats = assist.stats()
    assert (sum(stats.waiting.values()), stats.postponed) == (0, 0)


def test_tries_are_not_counted_as_tasks(monkeypatch):
    monkeypatch.setattr(pool, "retry_seconds", lambda failures: 0.01)
    with CPUAssistedTraining(1) as assist:
        assist.submit(fail, retries=2).exception(10)
        opened = threading.Event()
        assist.submit(opened.wait, timeout=0.1).exception(10)
        opened.set()
        until(lambda: assist.stats().abandoned_workers == 0)
        stats = assist.stats()
        assert (stats.done, stats.failed, stats.retried, stats.timed_out) == (0, 1, 2, 1)


def test_whatever_can_be_called_has_a_name():
    with CPUAssistedTraining(1) as assist:
        assert assist.submit(Mock(return_value=3)).result(10) == 3
        assert assist.submit(lambda task, self: task + self, task=3, self=4).result(10) == 7


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"queue_size": 2.5}, r"queue_size is 2\.5; it is a whole number"),
        ({"queue_size": "many"}, "queue_size is 'many'"),
        ({"max_pinned_bytes": 0}, "max_pinned_bytes is 0"),
        ({"keep_seconds": -1}, "keep_seconds is -1"),
        ({"keep_seconds": float("nan")}, "keep_seconds is nan"),
        ({"keep_seconds": "long"}, "keep_seconds is 'long'"),
        ({"preprocess": 3}, "'data_preprocessing' is 3"),
    ],
)
def test_bad_settings_are_said_at_once(more, message):
    with pytest.raises(InputError, match=message):
        CPUAssistedTraining(1, **more)


def test_bad_times_are_said_and_change_nothing():
    with CPUAssistedTraining(1) as assist:
        for bad in ("1", float("nan"), True):
            with pytest.raises(InputError, match=r"timeout of task 'int' is"):
                assist.submit(int, timeout=bad)
        for bad in ("1", float("nan"), -1):
            with pytest.raises(InputError, match=r"timeout of close\(\) is"):
                assist.close(timeout=bad)
        with pytest.raises(InputError, match="run_in is 'elsewhere'"):
            assist.register("half", int, run_in="elsewhere")
        assert "half" not in assist.names
        assert assist.submit(int, "7").result(10) == 7
