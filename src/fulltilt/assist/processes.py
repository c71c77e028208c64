"""Processes for tasks that would hold the interpreter lock. A worker thread sends the task to one and waits.

    worker thread ─ function and arguments, pickled ─► process ─ result, or what was raised ─► worker thread

There are as many as worker threads at most, started when they are needed. They are spawned, not forked, as threads and
CUDA don't survive a fork. Unlike a thread, a process in a task past its time can be ended, and is.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from fulltilt.errors import InputError, WorkerError, cause
from fulltilt.machine.interrupts import not_for_children


class Processes:
    """Processes that are there, idle or busy."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [child.pid for child in [*self._idle, *self._busy]]

    def call(self, function: Callable[..., Any]) -> Call:
        """A call of a function in a process; it is made once."""
        return Call(self, function)

    def borrow(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive():
                    break
                child.end()
            else:
                if self._closed:
                    raise WorkerError("the processes are closed")
                child = _Child()
            self._busy.add(child)
            return child

    def give_back(self, child: _Child) -> None:
        with self._lock:
            self._busy.discard(child)
            if child.reusable and child.alive() and not self._closed:
                self._idle.append(child)
                return
        child.end()

    def close(self) -> None:
        """End all of them; what is under way is lost."""
        if self._pid != os.getpid():
            return  # forked: they are the other process's
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.kill()  # its thread sees that, and ends it
        for child in idle:
            child.end()


class Call:
    """A function that runs in a process; can be stopped from another thread."""

    __slots__ = ("_child", "_function", "_lock", "_processes", "_stopped")

    def __init__(self, processes: Processes, function: Callable[..., Any]) -> None:
        self._processes, self._function = processes, function
        self._child: _Child | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = packed(self._function, args, kwargs)
        while True:
            with suppress(_NotBegunError):  # the process had died while it was idle: it is safe to ask another
                return self._ask(request)

    def _ask(self, request: bytes) -> Any:
        child = self._processes.borrow()
        try:
            with self._lock:
                self._child = child
                if self._stopped:
                    raise WorkerError("stopped before it began")
            return child.ask(request)
        finally:
            with self._lock:
                self._child = None
            self._processes.give_back(child)

    def stop(self) -> None:
        """End the process that is at it."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()


def packed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What is sent to a process."""
    try:
        return pickle.dumps((function, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{function!r} or its arguments can't be sent to another process: {error}. Define the function at the "
            "top of a module, or have it run in threads"
        ) from error


_MAIN_HINT = "a script that uses processes does its work under if __name__ == '__main__':, as they import it, too"


class _NotBegunError(Exception):
    """A process ended before it began with what it was asked."""


class _Child:
    """One process, seen from here."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="fulltilt-assist", daemon=True)
        resource_tracker.ensure_running()  # which lets go of what is held back
        with not_for_children():
            self._process.start()
        theirs.close()  # so that the end of the process is the end of the connection
        self.pid = self._process.pid or 0
        self._served = False
        self.reusable = True
        """Whatever it was asked, it has answered: the next answer is to the next question."""

    def alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, request: bytes) -> Any:
        begun, self.reusable = False, False
        try:
            self._ours.send_bytes(request)
            self._ours.recv_bytes()
            begun = True
            reply = self._ours.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            if self._served and not begun:
                raise _NotBegunError from None
            # One that has never begun anything may not be able to: another would fare no better.
            hint = "" if self._served or begun else f", before it began; {_MAIN_HINT}"
            how = cause(self._process.exitcode or 0)
            raise WorkerError(f"the process {self.pid} that was at it ended with {how}{hint}") from None
        self._served = self.reusable = True
        value, error = pickle.loads(reply)
        if error is not None:
            raise error
        return value

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()


def _serve(connection: Connection) -> None:
    """The process: tasks one by one, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # programs that a task starts may listen to theirs
    os.environ["OMP_NUM_THREADS"] = "1"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            return
        with suppress(BrokenPipeError):
            connection.send_bytes(b"begun")
            connection.send_bytes(_answer(request))


def _leave_with_parent() -> None:
    """In the middle of a task too: nobody will take its result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer(request: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(request)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
        value = function(*args, **kwargs)
    except BaseException as error:  # raised again on the other side, where its frames are not
        trace = f"in process {os.getpid()}:\n{''.join(traceback.format_exception(error))}"
        try:
            error.add_note(trace)
            reply = pickle.dumps((None, error))
            pickle.loads(reply)  # some can be sent but not made again
        except Exception:
            stand_in = RuntimeError(f"{type(error).__name__}: {error}")
            stand_in.add_note(trace)
            reply = pickle.dumps((None, stand_in))
        return reply
    try:
        return pickle.dumps((value, None), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        told = f"its result, of type {type(value).__name__}, can't be sent back from the process: {error}"
        return pickle.dumps((None, TypeError(told)))
