"""What is said where the loop waits for its next batch as if none would ever come: it may be right."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

log = logging.getLogger("fulltilt.feed")

FIRST_SECONDS = 30.0
"""Longer than a batch takes by itself. Then each time twice as long: one line for a night's wait, not thousands."""


class Waiting:
    """One wait for one batch."""

    def __init__(self, who: Callable[[], str]) -> None:
        """
        Args:
            who: what is waited for, in words.
        """
        self._who = who
        self.seconds = FIRST_SECONDS
        """How long to wait before the next word about it."""

    def say(self) -> None:
        """Nothing came in all that time."""
        log.warning("no batch has come for %g s; waiting for %s", self.seconds, self._who())
        self.seconds *= 2


def told_of(pids: Iterable[int]) -> str:
    """Processes, and what they do: one that sleeps on a disk, or was stopped, says enough."""
    return ", ".join(f"process {pid} ({_state(pid)})" for pid in pids)


def _state(pid: int) -> str:
    with suppress(psutil.Error):
        state = psutil.Process(pid).status()
        return f"stopped: kill -CONT {pid} has it go on" if state == psutil.STATUS_STOPPED else state
    return "gone"
