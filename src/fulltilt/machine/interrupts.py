"""Ctrl-C goes to every process in front of the terminal, also to one of ours that has only just begun."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_for_children() -> Iterator[None]:
    """Processes that are started meanwhile hear no Ctrl-C: not at all, or until they have said what it means to them.

    They inherit that it is held back. It can't be ignored for them: handlers are for this process's main thread to set.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
