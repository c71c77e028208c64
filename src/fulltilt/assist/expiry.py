"""Results that nobody comes for are let go of after a while, so that memory stays bounded over days."""

from __future__ import annotations

from collections import deque
from threading import Lock
from weakref import ref

from fulltilt.assist.future import TaskFuture

_TIDY_FROM = 4096
"""Futures below which those already gone are left on the list."""


class Expiry:
    """Futures with an outcome, oldest first, for as long as somebody else holds them.

    It needs no thread: memory grows only when results are added, and then the old ones go.
    """

    def __init__(self, keep_seconds: float | None) -> None:
        self._keep = keep_seconds
        self._kept: deque[tuple[float, ref[TaskFuture[object]]]] = deque()
        self._tidy_at = _TIDY_FROM
        self._due = 0.0
        """When the oldest has been kept long enough."""
        self._tidying = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, future: TaskFuture[object], now: float) -> None:
        if self._keep is None:
            return
        self._kept.append((now, ref(future)))
        if now < self._due and len(self._kept) <= self._tidy_at:
            return
        if not self._tidying.acquire(blocking=False):
            return  # another worker is at it; others only append meanwhile
        try:
            self._tidy(now, self._keep)
        finally:
            self._tidying.release()

    def _tidy(self, now: float, keep: float) -> None:
        while self._kept and self._kept[0][0] < now - keep:
            if (old := self._kept.popleft()[1]()) is not None:
                old.expire()
        if len(self._kept) > self._tidy_at:
            self._forget_the_gone()
        self._due = keep + (self._kept[0][0] if self._kept else now)

    def _forget_the_gone(self) -> None:
        # Once around: what others append meanwhile comes a little too early, which is of no consequence.
        for _ in range(len(self._kept)):
            added, reference = self._kept.popleft()
            if reference() is not None:
                self._kept.append((added, reference))
        self._tidy_at = max(_TIDY_FROM, 2 * len(self._kept))
