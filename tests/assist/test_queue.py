"""The queue under pressure: no task lost, none twice, no wake-up missed, the bound never passed."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from fulltilt.assist.policy import Priority
from fulltilt.assist.queue import TaskQueue
from fulltilt.assist.tasks import Task
from fulltilt.errors import QueueFullError, TaskError


class Nobody:
    def asked_for(self, task):
        pass

    def cancelled(self, task):
        pass


def task(name="t", priority=Priority.NORMAL, size=0):
    made = Task(Nobody(), name, int, priority=priority)
    made.bytes = size
    return made


def test_order():
    queue = TaskQueue(10)
    for name, priority in [("a", "LOW"), ("b", "HIGH"), ("c", "NORMAL"), ("d", "HIGH")]:
        queue.put(task(name, Priority[priority]))
    assert [queue.take().future.name for _ in range(4)] == list("bdca")


@pytest.mark.parametrize("capacity", [1, 3, 1000])
def test_many_who_put_and_many_who_take(capacity):
    queue, each = TaskQueue(capacity), 3000
    seen: list[Counter[str]] = [Counter() for _ in range(4)]
    most = []

    def put(who):
        for n in range(each):
            queue.put(task(f"{who}-{n}", list(Priority)[n % 3]))

    def take(mine):
        while (taken := queue.take()) is not None:
            mine[taken.future.name] += 1
            most.append(sum(queue.waiting))

    takers = [threading.Thread(target=take, args=(mine,)) for mine in seen]
    putters = [threading.Thread(target=put, args=(who,)) for who in range(4)]
    for thread in takers + putters:
        thread.start()
    for thread in putters:
        thread.join(60)
        assert not thread.is_alive()
    while sum(queue.waiting):
        pass
    queue.close()
    for thread in takers:
        thread.join(10)
        assert not thread.is_alive()
    total = sum(seen, Counter())
    assert len(total) == 4 * each
    assert set(total.values()) == {1}
    assert max(most) <= capacity


def test_postponed_tasks_count():
    queue = TaskQueue(2, when_full="refuse")
    queue.put(task())
    first = queue.take()
    assert first.future.begin()
    assert first.future.postpone()
    assert queue.postpone(first)
    queue.put(task())
    with pytest.raises(QueueFullError, match="2 of 2"):
        queue.put(task())
    queue.put_back(first)
    assert queue.waiting == (0, 2, 0)
    assert queue.postponed == 0


def test_memory_counts():
    queue = TaskQueue(100, when_full="refuse", max_bytes=10)
    large = task(size=50)
    queue.put(large)  # more than all of it, but alone
    with pytest.raises(QueueFullError, match="50 of 10 bytes"):
        queue.put(task(size=1))
    queue.put(task())  # needs none
    queue.released(queue.take())
    queue.put(task(size=6))
    queue.put(task(size=4))
    assert queue.held_bytes == 10
    with pytest.raises(QueueFullError):
        queue.put(task(size=1))


def test_memory_of_those_who_never_entered_is_not_given_back():
    queue = TaskQueue(100, when_full="refuse", max_bytes=10)
    inside, outside = task(size=10), task(size=10)
    queue.put(inside)
    with pytest.raises(QueueFullError):
        queue.put(outside)
    queue.released(outside)
    assert queue.held_bytes == 10
    for _ in range(2):  # once is enough
        queue.released(inside)
        assert queue.held_bytes == 0


def test_as_many_are_dropped_as_hold_the_memory():
    queue = TaskQueue(100, when_full="drop", max_bytes=10)
    small = [task(f"small-{n}", Priority.LOW, size=2) for n in range(5)]
    for each in small:
        queue.put(each)
    assert queue.put(task("urgent", Priority.HIGH, size=5)) == small[:3]
    assert queue.held_bytes == 9
    running = queue.take()
    assert running.future.name == "urgent"
    large = task("large", size=6)
    assert queue.put(large) == [large], "what runs holds too much: nobody else is dropped in vain"
    assert (queue.held_bytes, queue.waiting) == (9, (0, 0, 2))
    queue.released(large)
    queue.released(running)
    assert queue.put(task("again", size=9)) == small[3:]
    assert queue.held_bytes == 9


def test_a_task_that_was_cancelled_before_its_next_try_leaves_its_place():
    queue = TaskQueue(1, when_full="refuse")
    queue.put(task())
    first = queue.take()
    first.future.begin()
    first.future.postpone()
    queue.postpone(first)
    assert first.future.cancel()
    queue.left_over(first)
    queue.put(task("second"))
    queue.put_back(first)
    assert queue.take().future.name == "second"
    assert queue.waiting == (0, 0, 0)


def test_close_hands_out_those_who_wait_for_their_next_try():
    queue = TaskQueue(2)
    queue.put(task("first"))
    first = queue.take()
    first.future.begin()
    first.future.postpone()
    queue.postpone(first)
    assert queue.close() == [first]
    assert not queue.postpone(first)
    queue.put_back(first)  # too late
    assert queue.take() is None


def test_close_frees_those_who_wait():
    queue = TaskQueue(1)
    queue.put(task("first"))
    outcome = []

    def put():
        try:
            queue.put(task("second"))
        except TaskError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=put)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert [left.future.name for left in queue.close()] == ["first"]
    thread.join(5)
    assert outcome == ["task 'second' was submitted after close()"]
    assert queue.take() is None
