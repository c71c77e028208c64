"""Host memory of batches that were copied to the device: who gives it back, and how long that takes.

A batch from a worker lies in shared memory of its own. When the script lets go of it, that is unmapped, page by page:
as long as the copy itself for a batch of some megabytes, between two lines of the script where no hook is. So each
tensor that was copied is held for a moment longer than the script holds it, and let go of where the time is counted.

    copy ─► held ─┬► the forward that follows: those that nobody else has
                  └► the first copy, or forward, after the next batch has come: all others

No tensor lives longer than from there to here: what the script still has is given back by itself as ever.
"""

from __future__ import annotations

import sys
from typing import Any

from fulltilt.measure.timeline import COPY, Timeline


def _shared(tensors: list[Any], ours: int) -> list[Any]:
    """Those of which somebody else has a reference."""
    return [tensor for tensor in tensors if sys.getrefcount(tensor) > ours]


_OURS = next(count for count in range(10) if not _shared([object()], count))
"""References to what nobody else has: a list's, a loop's, and that of the question; how many is Python's affair."""


class Sources:
    """One process's."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._before: list[Any] = []
        """Of the batch before: the script holds them no more."""

    def __bool__(self) -> bool:
        return bool(self._held or self._before)

    def hold(self, tensor: Any) -> None:
        self._held.append(tensor)

    def next_batch(self) -> None:
        """It has come."""
        if self._held:
            self._before += self._held
            self._held = []

    def copies(self, timeline: Timeline) -> None:
        """A copy is about to be made."""
        if self._before:
            began_ns = timeline.clock()
            self._before = []
            timeline.charge(COPY, began_ns)

    def forward(self, timeline: Timeline) -> None:
        """One is about to begin."""
        began_ns = timeline.clock()
        self._before = []
        self._held = _shared(self._held, _OURS)
        timeline.charge(COPY, began_ns)

    def clear(self) -> None:
        """Nobody watches for a while."""
        self._held, self._before = [], []
