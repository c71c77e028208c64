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


def receive_report(fd: int) -> Report | None:
    """The next report, or None when nobody is left who could write one."""
    record = os.read(fd, _REPORT.size)
    if len(record) < _REPORT.size:
        return None
    worker, slot, round_, first, samples, length = _REPORT.unpack(record)
    text = os.read(fd, length).decode(errors="replace") if length else ""
    return Report(worker, slot, round_, first, samples, text)
