"""CPUAssistedTraining with real threads."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError

import psutil
import pytest
import torch
from tests.waiting import until

from fulltilt import CPUAssistedTraining
from fulltilt.assist import policy, pool
from fulltilt.errors import InputError, QueueFullError, TaskError, TaskTimeoutError


class Gate:
    """A task that holds its worker until it is let go."""

    def __init__(self):
        self.began, self.opened = threading.Event(), threading.Event()

    def __call__(self):
        self.began.set()
        assert self.opened.wait(20)
        return "through"


def held(assist, **more):
    gate = Gate()
    future = assist.submit(gate, **more)
    assert gate.began.wait(10)
    return gate, future


@pytest.fixture
def assist():
    with CPUAssistedTraining(1) as made:
        yield made


@pytest.fixture
def quick_retries(monkeypatch):
    monkeypatch.setattr(pool, "retry_seconds", lambda failures: 0.01 * 2 ** (failures - 1))


def test_results_and_arguments(assist):
    assert assist.submit(divmod, 17, 5).result(5) == (3, 2)
    assert assist.submit(dict, a=1).result(5) == {"a": 1}


def test_priorities_are_honoured_and_equals_keep_their_order(assist):
    gate, _ = held(assist)
    order = []
    for n, priority in enumerate(["low", "normal", "high", "low", "normal", "high"]):
        assist.submit(order.append, (priority, n), priority=priority)
    gate.opened.set()
    assist.close()
    assert order == [("high", 2), ("high", 5), ("normal", 1), ("normal", 4), ("low", 0), ("low", 3)]


def test_an_error_is_raised_where_the_result_is_asked_for_with_the_tasks_name(assist):
    future = assist.submit("compute_metrics", torch.zeros(2, 3), torch.zeros(5))
    with pytest.raises(
        TaskError, match=r"task 'compute_metrics' failed: InputError: outputs of shape \(2, 3\)"
    ) as told:
        future.result(5)
    assert told.value.task == "compute_metrics"
    assert isinstance(told.value.__cause__, InputError)
    assert future.exception() is told.value
    assert assist.submit(int, "7").result(5) == 7


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError])
def test_whatever_a_task_raises_its_worker_goes_on(assist, error):
    def task():
        raise error("no")

    with pytest.raises(TaskError, match=error.__name__):
        assist.submit(task, retries=3).result(5)
    assert assist.submit(int, "7").result(5) == 7
    assert assist.stats().replaced_workers == 0


def test_retries_until_it_works(assist, quick_retries):
    tries = []

    def flaky():
        tries.append(time.perf_counter())
        if len(tries) < 4:
            raise OSError("not yet")
        return "at last"

    assert assist.submit(flaky, retries=5).result(10) == "at last"
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert len(gaps) == 3
    assert all(gap >= wait for gap, wait in zip(gaps, (0.01, 0.02, 0.04), strict=True))
    assert assist.stats().retried == 3


def test_retries_that_run_out(assist, quick_retries):
    def broken():
        raise OSError("never")

    with pytest.raises(TaskError, match="'broken' failed 3 times: OSError: never"):
        assist.submit(broken, retries=2).result(10)


def test_other_tasks_run_while_one_waits_for_its_next_try(assist):
    def broken():
        raise OSError("never")

    future = assist.submit(broken, retries=3)
    until(lambda: assist.stats().postponed)
    assert assist.submit(int, "7").result(5) == 7
    assert future.cancel()
    with pytest.raises(CancelledError, match="broken"):
        future.result()


def test_a_timeout_frees_the_caller_at_once_and_the_worker_is_replaced(assist):
    gate, future = held(assist, timeout=0.5)
    began = time.perf_counter()
    with pytest.raises(TaskTimeoutError, match=r"'Gate' took longer than its 0.5 s; it had been running"):
        future.result()
    assert time.perf_counter() - began < 2
    assert assist.submit(int, "7").result(5) == 7  # though the only worker is still in the gate
    assert (assist.stats().abandoned_workers, assist.stats().replaced_workers) == (1, 1)
    gate.opened.set()
    until(lambda: assist.stats().abandoned_workers == 0)
    assert assist.stats().workers == 1
    assert isinstance(future.exception(), TimeoutError)  # what came later changes nothing


def test_a_timeout_of_a_task_that_waits(assist):
    gate, _ = held(assist)
    done = []
    late = assist.submit(done.append, 1, timeout=0.05)
    with pytest.raises(TaskTimeoutError, match="it had not begun"):
        late.result(5)
    gate.opened.set()
    assist.close()
    assert done == []
    assert assist.stats().timed_out == 1


def test_threads_that_never_come_back_are_limited(assist, caplog):
    gates = []
    for _ in range(policy.ABANDONED_PER_WORKER + 1):
        gate, future = held(assist, timeout=0.5)  # long enough to begin on busy cores
        gates.append(gate)
        assert isinstance(future.exception(5), TaskTimeoutError)
    until(lambda: "no more are started" in caplog.text)
    assert assist.stats().abandoned_workers == policy.ABANDONED_PER_WORKER
    last = assist.submit(int, "7")
    for gate in gates:
        gate.opened.set()
    assert last.result(5) == 7


def test_waiting_for_a_result_has_a_limit_of_its_own(assist):
    gate, future = held(assist)
    with pytest.raises(TaskTimeoutError, match=r"'Gate' had no result after 0\.02 s"):
        future.result(timeout=0.02)
    assert future.running()
    gate.opened.set()
    assert future.result(5) == "through"


def test_cancel(assist):
    gate, first = held(assist)
    second = assist.submit(int, "7")
    assert not first.cancel()
    assert second.cancel()
    assert second.cancelled()
    assert second.done()
    gate.opened.set()
    assert first.result(5) == "through"
    assert assist.stats().cancelled == 1


def test_cancelled_tasks_let_go_of_their_arguments(assist):
    gate, _ = held(assist)
    tensor = torch.zeros(3)
    seen = weakref.ref(tensor)
    future = assist.submit(torch.sum, tensor)
    del tensor
    assert seen() is not None
    future.cancel()
    gc.collect()
    assert seen() is None
    gate.opened.set()


def test_an_exception_in_a_callback_is_logged_and_harms_nobody(assist, caplog):
    seen = []
    gate, future = held(assist)
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: seen.append(f.result()))
    gate.opened.set()
    until(lambda: seen)
    assert seen == ["through"]
    assert "a callback of task 'Gate' failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert assist.submit(int, "7").result(5) == 7
    future.add_done_callback(lambda f: seen.append("at once"))
    assert seen[-1] == "at once"


def test_a_worker_that_dies_is_replaced(assist, caplog):
    gate, future = held(assist)
    future.add_done_callback(lambda f: sys.exit(1))  # not the task's own: it ends the thread
    gate.opened.set()
    assert future.result(5) == "through"
    until(lambda: assist.stats().replaced_workers == 1)
    assert assist.submit(int, "7").result(5) == 7
    assert "died (SystemExit(1)); another goes on" in caplog.text


def throw_into_workers(assist):
    for ident in list(assist._pool._crew._workers):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))


def test_workers_killed_while_they_are_idle_and_while_they_are_not():
    with CPUAssistedTraining(3) as assist:
        gates = [held(assist) for _ in range(3)]
        throw_into_workers(assist)  # lands in the tasks: theirs to fail with
        for gate, future in gates:
            gate.opened.set()
            assert isinstance(future.exception(5), TaskError | None)
        until(lambda: assist.stats().busy == 0)
        time.sleep(0.05)  # all asleep in the queue
        throw_into_workers(assist)  # lands when they wake up: the one with the wake-up dies, another has to get it
        assert [assist.submit(int, n).result(5) for n in range(100)] == list(range(100))
        until(lambda: assist.stats().replaced_workers >= 1)
        until(lambda: assist.stats().workers == 3)


def test_a_full_queue_waits():
    with CPUAssistedTraining(1, queue_size=2) as assist:
        gate, _ = held(assist)
        ours = [assist.submit(int, n) for n in range(2)]
        entered = threading.Event()

        def submit():
            ours.append(assist.submit(int, 2))
            entered.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert not entered.wait(0.1)
        gate.opened.set()
        assert entered.wait(5)
        thread.join()
        assert [future.result(5) for future in ours] == [0, 1, 2]


def test_cancelling_makes_room_in_a_full_queue():
    with CPUAssistedTraining(1, queue_size=2, when_full="refuse") as assist:
        gate, _ = held(assist)
        first, _ = (assist.submit(int, n) for n in range(2))
        first.cancel()
        assert sum(assist.stats().waiting.values()) == 2  # it still stands there
        third = assist.submit(int, 2)
        gate.opened.set()
        assert third.result(5) == 2


def test_a_full_queue_drops_the_oldest_of_the_lowest_priority():
    with CPUAssistedTraining(1, queue_size=3, when_full="drop") as assist:
        gate, _ = held(assist)
        a, b = (assist.submit(int, n, priority="low") for n in range(2))
        c = assist.submit(int, 2)
        d, e, f = (assist.submit(int, n) for n in (3, 4, 5))
        g = assist.submit(int, 6, priority="low")
        gate.opened.set()
        for lost in (a, b, c, g):
            with pytest.raises(TaskError, match="'int' was dropped: the queue was full"):
                lost.result(5)
        assert [future.result(5) for future in (d, e, f)] == [3, 4, 5]
        assert assist.stats().dropped == 4


def test_a_full_queue_refuses():
    with CPUAssistedTraining(1, queue_size=2, when_full="refuse") as assist:
        gate, _ = held(assist)
        kept = [assist.submit(int, n) for n in range(2)]
        with pytest.raises(QueueFullError, match=r"'int' was refused: the queue is full \(2 of 2 tasks"):
            assist.submit(int, 9, timeout=5)
        gate.opened.set()
        assert [future.result(5) for future in kept] == [0, 1]


def test_a_task_never_waits_for_room_in_its_own_queue():
    with CPUAssistedTraining(1, queue_size=1) as assist:

        def task():
            assist.submit(int, 1)
            return assist.submit(int, 2)

        with pytest.raises(TaskError, match="a worker that waited here could wait for itself"):
            assist.submit(task).result(5)


def test_a_task_can_wait_for_tasks_of_its_own(assist):
    def sum_up(n):
        return n + (assist.submit(sum_up, n - 1).result() if n else 0)

    assert assist.submit(sum_up, 20).result(10) == 210  # with one worker


def test_close_finishes_what_is_queued():
    done = []
    assist = CPUAssistedTraining(2)
    for n in range(200):
        assist.submit(done.append, n)
    assist.close()
    assert sorted(done) == list(range(200))
    with pytest.raises(InputError, match="'int' was submitted to a pool that is closed"):
        assist.submit(int)
    assist.close()  # again does nothing


def test_close_can_cancel_what_has_not_begun():
    assist = CPUAssistedTraining(1)
    gate, first = held(assist)
    rest = [assist.submit(int, n) for n in range(5)]
    threading.Timer(0.1, gate.opened.set).start()
    assist.close(cancel=True)
    assert first.result(0) == "through"
    assert all(future.cancelled() for future in rest)


def test_close_does_not_wait_longer_than_it_is_told(caplog):
    assist = CPUAssistedTraining(1)
    gate, _ = held(assist)
    waiting = assist.submit(int)
    began = time.perf_counter()
    assist.close(timeout=0.1)
    assert time.perf_counter() - began < 2
    assert waiting.cancelled()
    assert "left behind" in caplog.text
    gate.opened.set()


def test_an_error_in_the_block_cancels_what_waits():
    waiting = []

    def loop():
        with CPUAssistedTraining(1) as assist:
            gate, _ = held(assist)
            waiting.append(assist.submit(int))
            threading.Timer(0.1, gate.opened.set).start()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        loop()
    assert waiting[0].cancelled()


def test_threads_end_when_the_object_is_gone():
    assist = CPUAssistedTraining(2)
    future = assist.submit(int, "7")
    before = {t for t in threading.enumerate() if t.name.startswith("fulltilt-assist-")}
    assert len(before) >= 2
    del assist
    gc.collect()
    assert future.result(5) == 7
    until(lambda: not any(thread.is_alive() for thread in before))


def test_names_of_ones_own(assist):
    assist.register("double", lambda x: 2 * x)
    assert assist.submit("double", 4).result(5) == 8
    assert assist.names == ("compute_metrics", "data_preprocessing", "double", "extract_features")
    with pytest.raises(InputError, match="no task 'treble'; there are compute_metrics, "):
        assist.submit("treble", 4)
    with pytest.raises(InputError, match="'x' is 3; it has to be something that can be called"):
        assist.register("x", 3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"priority": "urgent"}, "priority is 'urgent'"),
        ({"timeout": 0}, "timeout of task 'int' is 0"),
        ({"retries": -1}, "retries of task 'int' is -1"),
    ],
)
def test_bad_options_are_said_at_once(assist, more, message):
    with pytest.raises(InputError, match=message):
        assist.submit(int, **more)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "two"])
def test_bad_numbers_of_workers(workers):
    with pytest.raises(InputError, match=r"num_workers is .*a number from 1 on, or 'auto'"):
        CPUAssistedTraining(workers)


def test_torch_computes_with_one_thread_in_workers_and_as_before_elsewhere():
    before, seen = torch.get_num_threads(), []
    with CPUAssistedTraining(3) as assist:
        assert {assist.submit(torch.get_num_threads).result(5) for _ in range(20)} == {1}
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert seen == [before]
    assert torch.get_num_threads() == before


def test_many_small_tasks_in_flat_memory():
    process = psutil.Process()
    with CPUAssistedTraining(2) as assist:

        def batch(n):
            last = None
            for _ in range(n):
                last = assist.submit(bytes, 1000, timeout=60.0)
            assert last.result(30) == bytes(1000)

        batch(20_000)
        gc.collect()
        before = process.memory_info().rss
        batch(80_000)
        gc.collect()
        assert process.memory_info().rss - before < 24 << 20  # the results alone would be 80 MB
        assert assist.stats().done == 100_000
        assert len(assist._pool._expiry) <= 3 * 4096
        assert len(assist._pool._clock._agenda._entries) < 25_000
