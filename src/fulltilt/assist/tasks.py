"""A task: what a worker needs to carry it out, and who hears what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from fulltilt.assist.agenda import Entry
from fulltilt.assist.future import TaskFuture
from fulltilt.assist.policy import Priority
from fulltilt.errors import TaskError, TaskTimeoutError


class Owner(Protocol):
    """Who carries a task out, and hears what its caller does."""

    def asked_for(self, task: Task) -> None:
        """Somebody is about to wait for it."""

    def cancelled(self, task: Task) -> None:
        """Nobody wants it any more."""


class Task:
    """What a worker needs to carry out a task; emptied when it is over, so that nothing is held by a queue."""

    __slots__ = (
        "args",
        "began",
        "bytes",
        "deadline",
        "entered",
        "failures",
        "fn",
        "future",
        "kwargs",
        "owner",
        "priority",
        "ready",
        "retries",
        "stop",
        "timeout",
    )

    def __init__(
        self,
        owner: Owner,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
        retries: int = 0,
    ) -> None:
        self.owner, self.fn, self.args, self.kwargs = owner, fn, args, kwargs or {}
        self.priority, self.retries, self.timeout = priority, retries, timeout
        self.future: TaskFuture[Any] = TaskFuture(name)
        self.future._task = self
        self.failures = 0
        self.bytes = 0
        """Of host memory that is taken for as long as the task lasts."""
        self.entered = False
        """The queue has let it in, and counts its bytes."""
        self.ready: Callable[[], None] | None = None
        """Waits until the arguments have arrived from the GPU."""
        self.stop: Callable[[], None] | None = None
        """Ends it while it runs; threads can't be."""
        self.deadline: Entry | None = None
        self.began = 0.0

    def call(self) -> Any:
        if self.ready is not None:
            self.ready()
        return self.fn(*self.args, **self.kwargs)

    def clear(self) -> None:
        """Forget function and arguments; a call under way has its own hold on them."""
        self.fn, self.args, self.kwargs, self.ready = _gone, (), {}, None

    def failed(self, error: BaseException) -> TaskError:
        """The error as the caller will see it."""
        name, tries = self.future.name, "" if self.failures <= 1 else f" {self.failures} times"
        try:
            text = str(error)
        except Exception as broken:  # it is the user's own
            text = f"(its text could not be made: {broken!r})"
        told = TaskError(f"task {name!r} failed{tries}: {type(error).__name__}: {text}", task=name)
        told.__cause__ = error
        return told

    def timed_out(self) -> TaskTimeoutError:
        name = self.future.name
        where = (
            f"it had been running for {time.perf_counter() - self.began:.3g} s" if self.began else "it had not begun"
        )
        return TaskTimeoutError(f"task {name!r} took longer than its {self.timeout:g} s; {where}", task=name)


def _gone() -> None:
    """In place of the function of a task that is over."""
