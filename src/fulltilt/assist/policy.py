"""What is decided about tasks, apart from threads and clocks: who may enter the queue, when to try again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Literal, get_args

from fulltilt.errors import InputError

WhenFull = Literal["wait", "drop", "refuse"]
"""wait: until there is room. drop: the oldest task of the lowest priority. refuse: raise QueueFullError."""

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 30.0
ABANDONED_PER_WORKER = 4
"""Threads left behind in tasks that ran past their time, each replaced, before no more are started."""


class Priority(IntEnum):
    """Which task is taken first; among equals the oldest."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


_NAMES: Final = {level.name.lower(): level for level in Priority}


def priority_of(given: Priority | str) -> Priority:
    """A priority by its name."""
    if isinstance(given, Priority):
        return given
    try:
        return _NAMES[given]
    except (KeyError, TypeError):
        raise InputError(f"priority is {given!r}; it can be 'high', 'normal' or 'low'") from None


def policy_of(given: str) -> WhenFull:
    """A queue's policy by its name."""
    if given not in get_args(WhenFull):
        raise InputError(f"when_full is {given!r}; it can be {', '.join(map(repr, get_args(WhenFull)))}")
    return given  # type: ignore[return-value]  # one of the literals


Verdict = Literal["enter", "wait", "refuse"]


def admit(waiting: Sequence[int], priority: Priority, *, full: bool, when_full: WhenFull) -> Verdict | Priority:
    """What becomes of a task that wants to enter a queue.

    Args:
        waiting: how many tasks wait at each priority.

    Returns:
        "enter", "wait", "refuse", or the priority whose oldest task has to go first; where that priority has nobody
        waiting, it is the newcomer itself that goes.
    """
    if not full:
        return "enter"
    if when_full != "drop":
        return when_full
    # Less urgent ones first. Never one that is more urgent than the newcomer.
    for level in reversed(Priority):
        if level >= priority and waiting[level]:
            return level
    return priority


def retry_seconds(failures: int) -> float:
    """How long to wait after so many failures: twice as long each time, up to a limit."""
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 60), LONGEST_RETRY_SECONDS)


def may_replace(abandoned: int, workers: int) -> bool:
    """Whether one more thread may be left behind and another started in its place."""
    return abandoned < workers * ABANDONED_PER_WORKER
