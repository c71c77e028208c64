"""`CPUAssistedTraining`: CPU work beside the training loop."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal

from fulltilt.assist.future import TaskFuture
from fulltilt.assist.handover import Handover
from fulltilt.assist.placing import Place, place, placed, probe
from fulltilt.assist.policy import Priority, WhenFull, policy_of, priority_of
from fulltilt.assist.pool import EXIT_SECONDS, Pool, PoolStats
from fulltilt.assist.processes import Processes, packed
from fulltilt.assist.registry import Registry, named_function
from fulltilt.assist.tasks import Task
from fulltilt.errors import InputError
from fulltilt.machine.budget import core_budget
from fulltilt.machine.cores import read_cores
from fulltilt.machine.decision import Decision
from fulltilt.machine.ranks import told_local_world

log = logging.getLogger("fulltilt.assist")

Auto = Literal["auto"]

PINNED_BYTES = 1 << 30


class CPUAssistedTraining:
    """Worker threads that take tasks from a queue: metrics, preprocessing, features, anything that can be called.

        with CPUAssistedTraining() as assist:
            future = assist.submit("compute_metrics", outputs, masks)
            ...                                   # the GPU goes on
            print(future.result())

    Args:
        num_workers: threads; "auto" takes what the core budget has for this, at least one. torch computes with one
            thread in each.
        preprocess: what the task "data_preprocessing" does; without it arrays become tensors.
        queue_size: tasks that may wait.
        when_full: "wait" until there is room, "drop" the oldest task of the lowest priority, or "refuse" with an error.
        max_pinned_bytes: host memory for tensors from the GPU; beyond it the queue counts as full.
        keep_seconds: a result that nobody has asked for is let go of after so long; None keeps it with its future.
    """

    def __init__(
        self,
        num_workers: int | Auto = "auto",
        *,
        preprocess: Callable[..., Any] | None = None,
        queue_size: int = 10_000,
        when_full: WhenFull = "wait",
        max_pinned_bytes: int = PINNED_BYTES,
        keep_seconds: float | None = 3600.0,
    ) -> None:
        at_least_one(queue_size=queue_size, max_pinned_bytes=max_pinned_bytes)
        if keep_seconds is not None and not _is_time(keep_seconds):
            raise InputError(f"keep_seconds is {keep_seconds!r}; it is more than 0 seconds, or None")
        self._workers = workers_for("assist", num_workers)
        self._registry = Registry(preprocess)
        self._places: dict[str, Decision[Place]] = {}
        self._handover = Handover()
        self._pool = Pool(
            self._workers,
            queue_size=queue_size,
            when_full=policy_of(when_full),
            max_bytes=max_pinned_bytes,
            keep_seconds=keep_seconds,
        )
        self._processes = Processes()
        # The threads hold the pool, not this object: when it is gone, they end. At exit the pool sees to itself.
        weakref.finalize(self, _release, self._pool, self._processes).atexit = False

    def submit(
        self,
        task: str | Callable[..., Any],
        /,
        *args: Any,
        priority: Priority | str = Priority.NORMAL,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> TaskFuture[Any]:
        """Have a function called by a worker, with these arguments; tensors among them arrive on the CPU, detached.

        Args:
            task: a function, or a registered name.
            priority: "high", "normal" or "low".
            timeout: seconds from now, all tries included, after which the future fails. A worker that is still in the
                task goes on for nobody, and another takes its place meanwhile.
            retries: how often a task that raised is tried again: after 0.1 s, 0.2 s, 0.4 s … at most 30 s.

        Raises:
            QueueFullError: the queue is full, and the policy is to refuse; or a task submits to its own full queue.
        """
        if isinstance(task, str):
            name, function = task, self._registry.find(task)
        else:
            name, function = _name_of(task), task
        if priority is not Priority.NORMAL:
            priority = priority_of(priority)
        if timeout is not None or retries:
            _check(name, timeout, retries)
        carried, ready = 0, None
        if args or kwargs:
            (args, kwargs), carried, ready = self._handover.take((args, kwargs))
        made = Task(self._pool, name, function, args, kwargs, priority, timeout, retries)
        made.bytes, made.ready = carried, ready
        if isinstance(task, str) and name in self._places and self._places[name].value == "processes":
            call = self._processes.call(function)
            made.fn, made.stop = call, call.stop
        return self._pool.submit(made)

    def register(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        run_in: Place | Auto = "threads",
        example: tuple[Any, ...] = (),
    ) -> Decision[Place]:
        """Give a task of your own a name; where it will run, and why.

        Args:
            run_in: "threads"; "processes", for pure Python, which would hold the interpreter lock: function, arguments
                and results are pickled, and a timeout ends the process; or "auto", which tries the task on `example`
                in a process for 0.3 to 1.5 s (longer only if single calls are), with one thread and with several.
            example: arguments to try it with.
        """
        named_function(name, function)
        if run_in == "auto":
            # One worker still takes the interpreter lock from the training loop, which is a thread like any other.
            threads = max(2, self._workers) if read_cores().usable > 1 else 1
            where = place(probe(self._processes, function, example, threads=threads))
            log.info("task %r runs in %s: %s", name, where.value, where.reason)
        else:
            where = placed(run_in)
        if where.value == "processes":
            packed(function, example, {})  # said now rather than at the first task
        self._registry.register(name, function)
        self._places[name] = where
        return where

    @property
    def places(self) -> dict[str, Decision[Place]]:
        """Where registered tasks run, and why."""
        return dict(self._places)

    @property
    def names(self) -> tuple[str, ...]:
        """Tasks that can be submitted by name."""
        return self._registry.names

    def stats(self) -> PoolStats:
        """Where things stand."""
        return self._pool.stats()

    def close(self, *, cancel: bool = False, timeout: float | None = None) -> None:
        """End in order: finish what is queued (or cancel what has not begun), then the threads; at most `timeout` s."""
        if timeout is not None and not _is_time(timeout) and timeout != 0:
            raise InputError(f"timeout of close() is {timeout!r}; it is a number of seconds, or None")
        try:
            self._pool.close(cancel=cancel, timeout=timeout)
        finally:
            self._processes.close()

    def __enter__(self) -> CPUAssistedTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. After an error nobody will ask for results: what runs is waited for as at the interpreter's exit."""
        self.close(cancel=error is not None, timeout=None if error is None else EXIT_SECONDS)


def _release(pool: Pool, processes: Processes) -> None:
    """Nobody can submit any more: let what is queued finish, then all ends; none of it is waited for here."""

    def close() -> None:
        try:
            pool.close()
        finally:
            processes.close()

    threading.Thread(target=close, name="fulltilt-assist-closing", daemon=True).start()


def workers_for(part: Literal["assist", "async"], asked: int | Auto) -> int:
    """How many threads."""
    if asked == "auto":
        budget = core_budget(read_cores().usable, ranks=told_local_world(), assist=True)
        return max(1, (budget.assist_workers if part == "assist" else budget.async_workers).value)
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise InputError(f"num_workers is {asked!r}; it can be a number from 1 on, or 'auto'")
    return asked


def _name_of(function: Callable[..., Any]) -> str:
    if not callable(function):
        raise InputError(f"task is {function!r}; it can be a function or a registered name")
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def at_least_one(**settings: int) -> None:
    """Say which of these is no whole number from 1 on."""
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} is {value!r}; it is a whole number from 1 on")


def _is_time(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0


def _check(name: str, timeout: float | None, retries: int) -> None:
    if timeout is not None and not _is_time(timeout):
        raise InputError(f"timeout of task {name!r} is {timeout!r}; it is more than 0 seconds, or None")
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InputError(f"retries of task {name!r} is {retries!r}; it is a number from 0 on")
