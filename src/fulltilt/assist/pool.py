"""Queue, workers, clock and expiry put together: tasks go in, futures come out.

submit ─► TaskQueue ─► Crew ─► future ─► Expiry
              ▲          │
              └─ Clock ◄─┘  retries; and deadlines, which end futures whatever the worker does, and have their callbacks
                            called by a thread of their own
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial

from fulltilt.assist.agenda import Clock
from fulltilt.assist.expiry import Expiry
from fulltilt.assist.future import TaskFuture
from fulltilt.assist.policy import Priority, WhenFull, retry_seconds
from fulltilt.assist.queue import TaskQueue
from fulltilt.assist.tasks import Task
from fulltilt.assist.workers import Crew, Worker
from fulltilt.errors import InputError, TaskError

log = logging.getLogger("fulltilt.assist")

EXIT_SECONDS = 10.0
"""How long the interpreter's exit, or a `with` block left by an error, waits for tasks that nobody has waited for."""
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Where a pool stands."""

    workers: int
    busy: int
    waiting: dict[str, int]
    """Tasks in the queue, by priority."""
    postponed: int
    """Tasks that failed and will be tried again."""
    done: int
    failed: int
    retried: int
    timed_out: int
    dropped: int
    cancelled: int
    replaced_workers: int
    """Workers started in place of others that died or are stuck."""
    abandoned_workers: int
    """Threads that are stuck in tasks past their time."""
    held_bytes: int
    """Host memory of tensors handed over from a GPU."""
    busy_seconds: float
    """Time that workers have spent in tasks."""
    wall_seconds: float
    """Since the pool was made."""


class Pool:
    """Threads that carry out tasks. Whoever makes one closes it."""

    def __init__(
        self,
        workers: int,
        *,
        queue_size: int,
        when_full: WhenFull,
        max_bytes: int | None = None,
        keep_seconds: float | None = None,
    ) -> None:
        self._queue = TaskQueue(queue_size, when_full=when_full, max_bytes=max_bytes)
        self._clock = Clock("fulltilt-assist-clock")
        self._callbacks = Clock("fulltilt-assist-callbacks")
        """For those of tasks that timed out: they may wait for anything, and the clock must not."""
        self._expiry = Expiry(keep_seconds)
        self._events: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closing = self._closed = False
        self._made = time.perf_counter()
        self._crew = Crew(self._queue, workers, run=self._run)
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)

    def submit(self, task: Task) -> TaskFuture[object]:
        """Queue a task; waits, drops or raises where the queue is full."""
        future = task.future
        if self._closing:
            raise InputError(f"task {future.name!r} was submitted to a pool that is closed; make another")
        if self._pid != os.getpid():
            raise InputError(
                f"task {future.name!r} was submitted in process {os.getpid()}, but the pool's threads are in process "
                f"{self._pid}; make the pool in the process that uses it"
            )
        if task.timeout is not None:
            task.deadline = self._clock.at(time.perf_counter() + task.timeout, partial(self._too_late, task))
        try:
            # Callbacks run on either, and what they may do should not depend on where.
            may_wait = self._crew.worker() is None and not self._callbacks.is_here()
            dropped = self._queue.put(task, may_wait=may_wait)
        except TaskError:
            self._over(task)
            raise
        for each in dropped:
            self._drop(each, newcomer=each is task)
        return future

    def stats(self) -> PoolStats:
        work = self._crew.work()
        with self._lock:
            events = self._events.copy()
        return PoolStats(
            workers=work.workers,
            busy=work.busy,
            waiting={level.name.lower(): n for level, n in zip(Priority, self._queue.waiting, strict=True)},
            postponed=self._queue.postponed,
            done=work.done,
            failed=work.failed,
            retried=events["retried"],
            timed_out=events["timed out"],
            dropped=events["dropped"],
            cancelled=events["cancelled"],
            replaced_workers=work.replaced,
            abandoned_workers=work.abandoned,
            held_bytes=self._queue.held_bytes,
            busy_seconds=work.busy_seconds,
            wall_seconds=time.perf_counter() - self._made,
        )

    def close(self, *, cancel: bool = False, timeout: float | None = None) -> None:
        """Finish the tasks, or cancel those that have not begun; wait for the workers, at most so long.

        Then every future is done: what has not begun is cancelled, and a thread that is still in a task, or in one past
        its time, is left behind.
        """
        if self._pid != os.getpid() or self._closed:  # after a fork the locks may be held by threads that are not here
            return
        self._closing = True
        if self._crew.worker() is not None:
            timeout = 0.0  # a task that closes its own pool can't wait for itself
        until = time.perf_counter() + (float("inf") if timeout is None else timeout)
        until = min(until, time.perf_counter() + threading.TIMEOUT_MAX / 2)
        while not cancel and self._has_work() and time.perf_counter() < until:
            time.sleep(_POLL_SECONDS)
        for task in self._queue.close():
            task.future.cancel()
        left = self._crew.close(until)  # the clock still goes: tasks that run may have deadlines
        for task in (task for worker in left for task in worker.tasks):
            self._leave_behind(task)
        self._clock.stop()
        self._callbacks.stop()
        self._closed = True
        atexit.unregister(self._at_exit)
        if left:
            log.warning("%d of the pool's threads are stuck in tasks and were left behind", len(left))

    def _has_work(self) -> bool:
        """Whether anybody can still do something. The order is a task's own way, so that none slips past the look."""
        waiting, work = any(self._queue.waiting), self._crew.work()
        left = waiting or work.busy or self._queue.postponed or any(self._queue.waiting)
        return work.able > 0 and bool(left)

    def _leave_behind(self, task: Task) -> None:
        name = task.future.name
        told = TaskError(f"task {name!r} was still running when its pool was closed; it was left behind", task=name)
        if task.future.overrule(told) is not None:
            self._over(task)
            task.future.announce()

    # --- the workers' side -------------------------------------------------------------------------------------------

    def _run(self, task: Task, worker: Worker) -> None:
        if not task.future.begin():
            return  # cancelled or out of time while it waited
        began = task.began = time.perf_counter()
        try:
            value = task.call()
        except BaseException as error:  # the task's own: raised again where the result is asked for
            self._failed(task, error, worker)
        else:
            future = task.future
            worker.done += not future.done()  # it may have timed out
            now = time.perf_counter()
            worker.seconds += now - began
            # All of its memory is free before anybody hears that it is done.
            self._over(task)
            if value is not None:
                self._expiry.add(future, now)
            future.finish(value)
            return
        worker.seconds += time.perf_counter() - began

    def _failed(self, task: Task, error: BaseException, worker: Worker) -> None:
        future = task.future
        task.failures += 1
        if task.failures <= task.retries and isinstance(error, Exception):
            if not future.postpone():
                return  # over already
            if self._queue.postpone(task):
                self._count("retried")
                again = partial(self._queue.put_back, task)
                self._clock.at(time.perf_counter() + retry_seconds(task.failures), again)
                return
        told = task.failed(error)
        worker.failed += not future.done()
        self._over(task)
        self._expiry.add(future, time.perf_counter())
        future.finish(error=told)

    def _over(self, task: Task) -> None:
        if task.deadline is not None:
            self._clock.forget(task.deadline)
        self._queue.released(task)
        task.clear()

    def _drop(self, task: Task, *, newcomer: bool) -> None:
        name = task.future.name
        why = "nothing less urgent could make room for it" if newcomer else "it was the oldest of the lowest priority"
        told = TaskError(f"task {name!r} was dropped: the queue was full, and {why}", task=name)
        if task.future.finish(error=told):
            self._count("dropped")
        self._over(task)

    def _too_late(self, task: Task) -> None:
        """On the clock's thread: the caller is free now, the worker when it can be."""
        was = task.future.overrule(task.timed_out())
        if was is None:
            return
        try:
            self._count("timed out")
            self._over(task)
            if was == "running" and task.stop is not None:
                task.stop()
            elif was == "running":
                self._crew.abandon(task)
            else:
                self._queue.left_over(task)
        finally:
            task.future.wake()
            if task.future.has_callbacks:
                self._callbacks.at(time.perf_counter(), task.future.announce)

    def _count(self, event: str) -> None:
        with self._lock:
            self._events[event] += 1

    # --- what the caller does with a future --------------------------------------------------------------------------

    def asked_for(self, task: Task) -> None:
        """A worker that waits for a task in its own queue does it itself: else all could wait, and none work."""
        if self._pid != os.getpid():
            raise InputError(
                f"task {task.future.name!r} is in process {self._pid}; process {os.getpid()} was forked from it and "
                "would wait for ever. Take results where they were submitted"
            )
        worker = self._crew.worker()
        if worker is None or task.future.running():
            return
        before = worker.seconds
        worker.inner.append(task)
        try:
            self._run(task, worker)
        finally:
            worker.inner.remove(task)
            worker.seconds = before  # the task that waits is charged for it

    def cancelled(self, task: Task) -> None:
        self._count("cancelled")
        self._over(task)
        self._queue.left_over(task)


def _close_at_exit(pool: weakref.ref[Pool]) -> None:
    found = pool()
    if found is not None:
        found.close(timeout=EXIT_SECONDS)
