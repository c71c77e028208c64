"""What the trainer and its decoder processes say to each other: fixed records on two pipes.

Every record is shorter than PIPE_BUF, so the kernel writes it whole: all decoders take from one pipe of tasks, whoever
is free first, and answer on one pipe of reports.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from typing import NamedTuple

_TASK = struct.Struct("<5q")
_REPORT = struct.Struct("<6q")
_TEXT_LIMIT = select.PIPE_BUF - _REPORT.size
_PIPE_BYTES = 1 << 16
"""What Linux lets a pipe hold."""


class Task(NamedTuple):
    """Decode `samples` samples of a slot, from `first` on."""

    slot: int
    round: int
    """How often the slot has been filled: a report of an earlier round is recognised."""
    first: int
    samples: int
    number: int = -1
    """Of all tasks that were sent: by it the trainer finds the one that a dying decoder took along."""


class Report(NamedTuple):
    """A part of a task is done; `text` says what failed, if something did."""

    worker: int
    slot: int
    round: int
    first: int
    samples: int
    text: str = ""


def send_task(fd: int, task: Task) -> None:
    """Write a task; waits while the pipe is full."""
    os.write(fd, _TASK.pack(*task))


def receive_task(fd: int) -> Task | None:
    """The next task, or None when the trainer has closed the pipe or is gone; BlockingIOError when there is none."""
    record = os.read(fd, _TASK.size)
    return Task(*_TASK.unpack(record)) if len(record) == _TASK.size else None


def tasks_waiting(fd: int) -> int:
    """Tasks that nobody has taken yet."""
    (size,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))
    return int(size) // _TASK.size


def send_report(fd: int, report: Report) -> None:
    """Write a report; a text that doesn't fit is cut."""
    text = report.text.encode(errors="replace")[:_TEXT_LIMIT]
    os.write(fd, _REPORT.pack(*report[:5], len(text)) + text)


class Reports:
    """The reading end of the reports' pipe. As many as are there come at once: each look at the pipe lets go of the
    interpreter's lock, and waits for it again while the trainer's thread launches kernels."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def receive(self) -> list[Report] | None:
        """Those that are there; None when nobody is left who could write one."""
        read = os.read(self._fd, _PIPE_BYTES)
        if not read:
            return None
        data, at, found = self._rest + read, 0, []
        while len(data) - at >= _REPORT.size:
            worker, slot, round_, first, samples, length = _REPORT.unpack_from(data, at)
            end = at + _REPORT.size + length
            if end > len(data):
                break
            text = data[at + _REPORT.size : end].decode(errors="replace")
            found.append(Report(worker, slot, round_, first, samples, text))
            at = end
        self._rest = data[at:]
        return found
