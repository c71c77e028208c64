"""How long the training step takes by itself, with its batch on the device.

On CUDA two events enclose it: one when the batch is handed out, one when the next is asked for. They are looked at
later, when the device has passed both; nobody waits for them. On the CPU the host's clock does, and what the loop's own
thread does to prepare a batch is part of the step: it can't go on meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

import torch

_REMEMBERED = 64
_PENDING = 64
"""Pairs that the device has not passed yet; there are never more than a few."""


class StepClock:
    """The steps' own time, per sample."""

    def __init__(self) -> None:
        self._begun: tuple[float | torch.cuda.Event, int] | None = None
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque(maxlen=_PENDING)
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._prepared = 0.0

    def prepared(self, seconds: float) -> None:
        """The loop's thread has prepared a batch for so long."""
        self._prepared += seconds

    def begin(self, samples: int, stream: torch.cuda.Stream | None = None) -> None:
        """A batch is handed out; `stream` is the one that the step runs on."""
        if samples:
            self._begun = (time.perf_counter() if stream is None else timed_event(stream)), samples

    def end(self, launched: torch.cuda.Event | None = None) -> None:
        """The next batch is asked for; `launched` was recorded behind all that the step has launched."""
        if self._begun is not None:
            begun, samples = self._begun
            if isinstance(begun, float):
                self._seconds.append((time.perf_counter() - begun + self._prepared) / samples)
            elif launched is not None:
                self._pending.append((begun, launched, samples))
        self._begun, self._prepared = None, 0.0
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            first, last, samples = self._pending.popleft()
            self._seconds.append(first.elapsed_time(last) / 1e3 / samples)

    def forget(self) -> None:
        """What goes on now is not a step: an epoch has ended."""
        self._begun = None

    @property
    def seconds_per_sample(self) -> float | None:
        """The median of the last steps; the first ones, which compile and warm up, don't weigh on it."""
        return statistics.median(self._seconds) if self._seconds else None


def timed_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
