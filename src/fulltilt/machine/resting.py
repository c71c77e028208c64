"""A program's end waits until native threads have let go of what is Python's.

Gloo's threads hold a collective a moment longer than whoever waited for it, and take the interpreter's lock to let go
of its tensors, or of the context that a backward ran in. A thread that asks for the lock while the interpreter ends is
ended there, and the process with it (SIGABRT). Who has begun the collective does not matter: those of
DistributedDataParallel are waited for as well.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from functools import cache

_LOOK_SECONDS = 0.001
_MOST_SECONDS = 2.0
"""Threads of others may be busy for ever."""


@cache
def rest_at_exit() -> None:
    """Have the end of the program wait for its native threads: for whoever speaks to other ranks."""
    atexit.register(rest)


def rest() -> None:
    """Wait, without the interpreter's lock, until all native threads have been asleep at two looks in a row."""
    until = time.monotonic() + _MOST_SECONDS
    looks = 0
    while looks < 2 and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        looks = 0 if _any_busy() else looks + 1


def _any_busy() -> bool:
    """Whether a thread that is not Python's runs, or wants to; not known without /proc."""
    known = {thread.native_id for thread in threading.enumerate()}
    try:
        natives = [task for task in os.listdir("/proc/self/task") if int(task) not in known]
    except OSError:
        return False
    return any(map(_is_awake, natives))


def _is_awake(task: str) -> bool:
    try:
        with open(f"/proc/self/task/{task}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1] != "S"
    except OSError:  # has ended meanwhile
        return False
