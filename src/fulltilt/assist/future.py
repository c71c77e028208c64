"""A future: the result of a task, some time.

    waiting ─► running ─► done        value or error, set once; whoever comes later finds it set
       ▲          ▼                   cancelled, timed out and dropped are errors too
       └── postponed                  it failed, and is tried again after a while

One is made for every task, so it is light: one lock, and more only for those that somebody waits for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from threading import TIMEOUT_MAX, Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from fulltilt.errors import TaskError, TaskTimeoutError

if TYPE_CHECKING:
    from fulltilt.assist.tasks import Task

log = logging.getLogger("fulltilt.assist")

Result = TypeVar("Result")

_WAITING, _POSTPONED, _RUNNING, _DONE = range(4)


class TaskFuture(Generic[Result]):
    """The result of a task, some time."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_error",
        "_lock",
        "_sleepers",
        "_state",
        "_task",
        "_value",
        "collected",
        "name",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self._state = _WAITING
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._lock = Lock()
        self._sleepers: list[Any] | None = None
        self._callbacks: list[Callable[[TaskFuture[Result]], object]] | None = None
        self._task: Task | None = None
        self.collected = False
        """Somebody has been given the value."""

    def __repr__(self) -> str:
        state = ("waiting", "postponed", "running", "done" if self._error is None else "failed")[self._state]
        return f"<TaskFuture {self.name!r}: {state}>"

    # --- for the caller ----------------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._state == _DONE

    def running(self) -> bool:
        return self._state == _RUNNING

    def cancelled(self) -> bool:
        return self._state == _DONE and isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        """Give up a task that no worker has begun; whether that was so."""
        with self._lock:
            if self._state not in (_WAITING, _POSTPONED):
                return self._state == _DONE and isinstance(self._error, CancelledError)
            task = self._task
            when = "before it began" if self._state == _WAITING else "before it was tried again"
            self._settle(None, CancelledError(f"task {self.name!r} was cancelled {when}"))
        if task is not None:
            task.owner.cancelled(task)
        self.announce()
        return True

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            TaskError: the task failed (its own exception is the cause), was dropped, or the result has expired.
            TaskTimeoutError: the task took too long, or `timeout` seconds have passed here; the task then goes on.
            CancelledError: the task was cancelled.
        """
        if self._state != _DONE:
            self._wait(timeout)
        value = self._value  # before the error is looked at: where a value expires, its error is set first
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback would hold the future that holds the error
        self.collected = True
        return value  # type: ignore[return-value]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; the error that `result` would raise, or None."""
        if self._state != _DONE:
            self._wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[TaskFuture[Result]], object]) -> None:
        """Have it called with the future when it is done, by whichever thread ends it; at once if it is done."""
        with self._lock:
            if self._state != _DONE:
                self._callbacks = [*(self._callbacks or ()), callback]
                return
        self._call(callback)

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.perf_counter() + timeout
        while True:
            sleeper = Lock()
            sleeper.acquire()
            with self._lock:
                if self._state == _DONE:
                    return
                self._sleepers = [*(self._sleepers or ()), sleeper]
            if (task := self._task) is not None:
                task.owner.asked_for(task)
            left = -1 if until is None else min(max(0.0, until - time.perf_counter()), TIMEOUT_MAX)
            if sleeper.acquire(timeout=left):
                continue  # it is done, or waits again: then the owner is told again
            with self._lock:
                if self._state == _DONE:
                    return
                if self._sleepers is not None and sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)
            raise TaskTimeoutError(
                f"task {self.name!r} had no result after {timeout:g} s; it goes on, and can be asked again",
                task=self.name,
            )

    # --- for those who carry tasks out --------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Take the task on; False if it is over already, or somebody else has begun."""
        with self._lock:
            if self._state != _WAITING:
                return False
            self._state = _RUNNING
            return True

    def postpone(self) -> bool:
        """The task will be tried again; False if it is over already (it timed out while it ran)."""
        with self._lock:
            if self._state != _RUNNING:
                return False
            self._state = _POSTPONED
            return True

    def resume(self) -> bool:
        """The time for another try has come; False if the task is over already. Those who wait look again."""
        with self._lock:
            if self._state != _POSTPONED:
                return False
            self._state = _WAITING
            self.wake()
            return True

    def finish(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome; False if there is one already."""
        with self._lock:
            if self._state == _DONE:
                return False
            self._settle(value, error)
        if self._sleepers is not None or self._callbacks is not None:
            self.announce()
        return True

    def overrule(self, error: BaseException) -> Literal["waiting", "running"] | None:
        """Set an error from outside; where the task was, or None if there is an outcome already.

        It is not announced yet: who sets it may have more urgent things to do than callbacks.
        """
        with self._lock:
            was = self._state
            if was == _DONE:
                return None
            self._settle(None, error)
        return "running" if was == _RUNNING else "waiting"

    def expire(self) -> None:
        """Let go of a value that nobody has come for, or of what the frames of a failed task hold."""
        with self._lock:
            if self._error is not None:
                _forget_frames(self._error.__cause__)
            elif not self.collected:
                self._error = TaskError(
                    f"the result of task {self.name!r} was not collected in time and has expired; collect results "
                    "sooner, or keep them longer with keep_seconds",
                    task=self.name,
                )
                self._value = None

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error, self._state, self._task = value, error, _DONE, None

    def announce(self) -> None:
        """Tell those who wait, and then the callbacks, which may take their time."""
        self.wake()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call(callback)

    def wake(self) -> None:
        """Tell those who wait."""
        sleepers, self._sleepers = self._sleepers, None
        for sleeper in sleepers or ():
            sleeper.release()

    @property
    def has_callbacks(self) -> bool:
        return self._callbacks is not None

    def _call(self, callback: Callable[[TaskFuture[Result]], object]) -> None:
        try:
            callback(self)
        except Exception:  # it is nobody's result, and must not end the worker
            log.exception("a callback of task %r failed", self.name)


def _forget_frames(error: BaseException | None) -> None:
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
