"""Every error that fulltilt raises on purpose.

    FulltiltError                 the base: catch this one
    ├── InputError                an argument, file or setting is wrong (also a ValueError); the CLI exits with 2
    │   ├── CacheError            a cache can't be built or read: damage, other settings, no room
    │   ├── CheckpointError       a checkpoint can't be read: damage, or of another model
    │   ├── DecodeError           an image can't be decoded; carries the kind of cause
    │   ├── RecordingError        a recording can't be read; carries the line number
    │   └── SampleError           a sample of a feed can't be read or decoded
    ├── LossError                 the loss is NaN or infinite; carries step, epoch and batch
    ├── TaskError                 a CPU task failed, was dropped or has expired; carries its name
    │   ├── QueueFullError        the queue of tasks is full, and its policy is to refuse
    │   └── TaskTimeoutError      a task took too long, or its result was not there in time (also a TimeoutError)
    ├── WorkerError               processes that load or decode have ended and can't be replaced
    └── UnavailableError          this machine lacks a GPU, driver or library; the CLI exits with 3
        └── GpuLostError          a GPU stopped answering; the others can still be read

Others end the CLI with 1; so does a command that did its work, but left out some files or found them damaged.
A message names what happened, the value found, what is allowed, and what to do next.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any, Literal

DecodeProblem = Literal["empty", "truncated", "not-an-image", "unsupported", "corrupt"]


class FulltiltError(Exception):
    """Base of all errors raised on purpose."""

    exit_status = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """From process to process with what it carries: some are made with keywords, which pickle can't know of."""
        return _same_error, (type(self), self.args, dict(vars(self)))


def _same_error(kind: type[FulltiltError], args: tuple[Any, ...], carried: dict[str, Any]) -> FulltiltError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(carried)
    return error


class InputError(FulltiltError, ValueError):
    """An argument, a file's content or a setting is wrong."""

    exit_status = 2


class CacheError(InputError):
    """A cache can't be built or read."""


class CheckpointError(InputError):
    """A checkpoint can't be read, or it is of another model."""


class DecodeError(InputError):
    """An image's bytes can't become pixels."""

    def __init__(self, message: str, *, problem: DecodeProblem = "corrupt") -> None:
        super().__init__(message)
        self.problem: DecodeProblem = problem


class RecordingError(InputError):
    """A recording can't be read."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class SampleError(InputError):
    """A sample of a feed can't be read or decoded."""


class LossError(FulltiltError):
    """The loss has become NaN or infinite."""

    def __init__(self, message: str, *, step: int, epoch: int, batch: int) -> None:
        super().__init__(message)
        self.step, self.epoch, self.batch = step, epoch, batch


class TaskError(FulltiltError):
    """A task that ran beside training has no result; what it raised itself is the cause."""

    def __init__(self, message: str, *, task: str) -> None:
        super().__init__(message)
        self.task = task


class QueueFullError(TaskError):
    """The queue of tasks is full."""


class TaskTimeoutError(TaskError, TimeoutError):
    """A task took too long, or its result was not there in time."""


class WorkerError(FulltiltError):
    """Processes that load or decode for a feed have ended, and it can't go on without them."""


class UnavailableError(FulltiltError):
    """This machine lacks what was asked for."""

    exit_status = 3


class GpuLostError(UnavailableError):
    """A GPU fell off the bus or needs a reset; the others can still be read."""


def first_line(error: BaseException, *, kind: bool = False) -> str:
    """Of what an exception says, the name of its class where that is nothing. With `kind` it has the name before it."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return name if not lines else f"{name}: {lines[0]}" if kind else lines[0]


def last_line(output: str | bytes, otherwise: str) -> str:
    """Of what a process that failed has said: there it says why."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return (text.strip().splitlines() or [otherwise])[-1]


def cause(status: int) -> str:
    """How a process ended: `exit status 3`, `signal SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):  # not all of them have a name
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
