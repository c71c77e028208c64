"""A bounded queue with priorities, between those who submit and the workers.

    submit ─► [high] [normal] [low] ─► take          each a deque: oldest first
              full: wait, drop or refuse (policy.py)

Workers take without a lock: a deque's own steps are atomic, and a lock that submitter and workers share would have them
wait in turns for every task. Only those who put hold one, so that the bound is exact: takers can only make room.

Whoever finds nothing to do leaves a locked lock where the other side sees it, looks once more, and waits for it to be
released. Whoever takes a task while others are waiting and asleep wakes one, so no wake-up is ever lost on the busy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import TIMEOUT_MAX, Lock
from typing import Any

from fulltilt.assist.policy import Priority, WhenFull, admit
from fulltilt.assist.tasks import Task
from fulltilt.errors import QueueFullError, TaskError


class TaskQueue:
    """Tasks that wait for a worker, those that wait for their next try, and the host memory that all of them hold."""

    def __init__(self, capacity: int, *, when_full: WhenFull = "wait", max_bytes: int | None = None) -> None:
        self.capacity, self.when_full, self.max_bytes = capacity, when_full, max_bytes
        self._levels: tuple[deque[Task], ...] = tuple(deque() for _ in Priority)
        self._lock = Lock()
        self._postponed: set[Task] = set()
        self._bytes = 0
        self._over = 0
        """Tasks that may still stand in the queue although they are over."""
        self._idle: deque[Any] = deque()
        self._blocked: deque[Any] = deque()
        self._closed = False

    @property
    def waiting(self) -> tuple[int, ...]:
        """Tasks at each priority."""
        return tuple(map(len, self._levels))

    @property
    def postponed(self) -> int:
        """Tasks that wait for their next try."""
        return len(self._postponed)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    # --- in ----------------------------------------------------------------------------------------------------------

    def put(self, task: Task, *, may_wait: bool = True) -> list[Task]:
        """Let a task in; who was dropped for it, or the task itself if that is the one to go.

        A task whose time is up before there is room does not enter: its deadline tells its caller.

        Raises:
            QueueFullError: there is no room, and the policy is to refuse, or `may_wait` is False.
        """
        while True:
            with self._lock:
                if self._closed:
                    raise TaskError(f"task {task.future.name!r} was submitted after close()", task=task.future.name)
                if task.deadline is not None and (task.future.done() or _seconds_left(task) <= 0):
                    return []
                verdict, dropped = self._admit(task), []
                if isinstance(verdict, Priority):
                    dropped, verdict = self._make_room(task), "enter"
                    if task in dropped:
                        return dropped
                if verdict == "enter":
                    self._bytes += task.bytes
                    task.entered = True
                    self._levels[task.priority].append(task)
                    break
            if verdict == "refuse" or not may_wait:
                raise self._no_room(task, may_wait)
            self._wait_for_room(task)
        if self._idle:
            _wake(self._idle)
        return dropped

    def postpone(self, task: Task) -> bool:
        """A task will come again with `put_back`, and counts as if it waited here; False if the queue is closed."""
        with self._lock:
            if not self._closed:
                self._postponed.add(task)
            return not self._closed

    def put_back(self, task: Task) -> None:
        """Let a postponed task in again, unless it is over or the queue was closed meanwhile."""
        with self._lock:
            if task in self._postponed and task.future.resume():
                self._levels[task.priority].append(task)
            self._postponed.discard(task)  # now, so that whoever looks without the lock sees it here or there
        _wake(self._idle)

    def released(self, task: Task) -> None:
        """A task is over: its memory is free."""
        if task.bytes:
            with self._lock:
                self._forget_bytes(task)
            _wake(self._blocked)

    def left_over(self, task: Task) -> None:
        """A task that waits here is over: cancelled, or out of time."""
        with self._lock:
            if task in self._postponed:
                self._postponed.discard(task)
            else:
                self._over += 1
        _wake(self._blocked)

    # --- out ---------------------------------------------------------------------------------------------------------

    def take(self) -> Task | None:
        """The next task, waited for; None when the queue is closed and empty."""
        while True:
            task = self._pop()
            if task is not None:
                return task
            asleep = Lock()
            asleep.acquire()
            self._idle.append(asleep)
            task = self._pop()
            if task is None and not self._closed:
                _sleep(asleep, self._idle)
                continue
            _get_up(asleep, self._idle)
            return task

    def close(self) -> list[Task]:
        """Let nobody in any more; those who still waited, for a worker or for their next try."""
        with self._lock:
            self._closed = True
            left = [*self._drained(), *self._postponed]
            self._postponed.clear()
        while self._idle or self._blocked:
            _wake(self._idle)
            _wake(self._blocked)
        return left

    def _pop(self) -> Task | None:
        for level in self._levels:
            if level:
                try:
                    task = level.popleft()
                except IndexError:  # another worker was quicker
                    continue
                if self._blocked:
                    _wake(self._blocked)
                if self._idle and any(self._levels):
                    _wake(self._idle)
                return task
        return None

    # --- room --------------------------------------------------------------------------------------------------------

    def _admit(self, task: Task) -> Priority | str:
        full = self._full(task)
        if full and self._over:
            self._sweep()
            full = self._full(task)
        return "enter" if not full else admit(self.waiting, task.priority, full=True, when_full=self.when_full)

    def _full(self, task: Task) -> bool:
        high, normal, low = self._levels
        if len(high) + len(normal) + len(low) + len(self._postponed) >= self.capacity:
            return True
        return self._lacks_memory(task)

    def _lacks_memory(self, task: Task, *, freed: int = 0) -> bool:
        # One task that is larger than all of the memory may still enter, alone.
        return task.bytes > 0 and self.max_bytes is not None and 0 < self._bytes - freed > self.max_bytes - task.bytes

    def _forget_bytes(self, task: Task) -> None:
        if task.entered:
            self._bytes -= task.bytes
        task.bytes = 0

    def _make_room(self, task: Task) -> list[Task]:
        """Drop the oldest of the lowest priority until a task fits; only itself where that would not be enough."""
        less_urgent = self._levels[task.priority :]
        if self._lacks_memory(task):  # of which tasks that run hold some, too
            waiting = [each for level in less_urgent for each in tuple(level)]
            if self._lacks_memory(task, freed=sum(each.bytes for each in waiting)):
                return [task]
        dropped: list[Task] = []
        while self._full(task):
            level = admit(self.waiting, task.priority, full=True, when_full="drop")
            try:
                oldest = self._levels[int(level)].popleft()
            except IndexError:  # a worker was quicker, or there is nobody
                if not any(less_urgent) and self._full(task):
                    return [*dropped, task]
                continue
            self._forget_bytes(oldest)
            dropped.append(oldest)
        return dropped

    def _sweep(self) -> None:
        """Take out tasks that are over. Once around each deque, so that workers can go on taking meanwhile."""
        self._over = 0
        for level in self._levels:
            for _ in range(len(level)):
                with suppress(IndexError):
                    task = level.popleft()
                    if not task.future.done():
                        level.append(task)

    def _wait_for_room(self, task: Task) -> None:
        asleep = Lock()
        asleep.acquire()
        self._blocked.append(asleep)
        if not self._closed and not self._over and self._full(task):
            _sleep(asleep, self._blocked, None if task.deadline is None else _seconds_left(task))
        else:
            _get_up(asleep, self._blocked)

    def _no_room(self, task: Task, may_wait: bool) -> QueueFullError:
        name = task.future.name
        if not may_wait:
            why = "a worker that waited here could wait for itself; submit outside of tasks and callbacks, or raise "
            why += "queue_size"
        else:
            why = "wait for results first, raise queue_size, or use when_full='wait' or 'drop'"
        memory = "" if self.max_bytes is None else f", {self._bytes} of {self.max_bytes} bytes"
        return QueueFullError(
            f"task {name!r} was refused: the queue is full "
            f"({sum(self.waiting) + self.postponed} of {self.capacity} tasks{memory}); {why}",
            task=name,
        )

    def _drained(self) -> Iterator[Task]:
        for level in self._levels:
            while level:
                with suppress(IndexError):
                    yield level.popleft()


def _seconds_left(task: Task) -> float:
    return task.deadline.when - time.perf_counter() if task.deadline is not None else TIMEOUT_MAX


def _sleep(asleep: Any, sleepers: deque[Any], seconds: float | None = None) -> None:
    """Until somebody releases it, or for so long. Ctrl-C can end it too."""
    woken = False
    try:
        woken = asleep.acquire(timeout=-1 if seconds is None else min(max(0.0, seconds), TIMEOUT_MAX))
    finally:
        if not woken:
            _get_up(asleep, sleepers)


def _get_up(asleep: Any, sleepers: deque[Any]) -> None:
    """Sleep no longer; a wake-up that has come already is passed on to somebody who needs it."""
    try:
        sleepers.remove(asleep)
    except ValueError:
        _wake(sleepers)


def _wake(sleepers: deque[Any]) -> None:
    """Release one of those who sleep, if there is one."""
    with suppress(IndexError):
        sleepers.popleft().release()
