"""The GPU's clock over a training loop: events put into its stream, read once they have passed, never waited for."""

from __future__ import annotations

from collections import deque
from typing import Any

from fulltilt.measure.timeline import Record

EVENTS = 640
"""Made in advance: as many as a run of 200 steps needs."""
READ_FROM = 200
"""Steps that may be unread before any is: a run of that length reads its events when it is over."""

Pair = tuple[Any, Any]


class GpuClock:
    """One event at the end of each step, and a pair around each wait for a batch.

    The pair's time on the GPU's clock is how long the GPU had nothing to do: with work queued, both events pass
    together, however long the host waited.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._raw_stream: Any = torch._C._cuda_getCurrentRawStream
        self._index = device.index if device.index is not None else self._cuda.current_device()
        self._stream = self._cuda.current_stream(device)
        self._known = self._raw_stream(self._index)
        self._capturing: Any = torch._C._cuda_isCurrentStreamCapturing
        self._last: Any = None
        self._wait: Any = None
        self._waits: list[Pair] = []
        self._pending: deque[tuple[Record, Any, Any, list[Pair]]] = deque()
        self._free: list[Any] = []
        self._free = [self._mark() for _ in range(EVENTS)]  # an event is made by the driver when it is first recorded

    def capturing(self) -> bool:
        """A graph is being captured: nothing may be put into the stream."""
        return bool(self._capturing())

    def wait_began(self) -> None:
        self._wait = None if self._capturing() else self._mark()

    def wait_ended(self) -> None:
        if self._wait is not None and not self._capturing():
            self._waits.append((self._wait, self._mark()))
        self._wait = None

    def drop_waits(self) -> None:
        """They belonged to an evaluation."""
        for pair in self._waits:
            self._free.extend(pair)
        self._waits = []

    def step_ended(self, record: Record) -> None:
        """A step with something beside it (an evaluation, say) has no figure of its own on the GPU's clock."""
        if self._capturing():
            self._last = None
            self.drop_waits()
            return
        end = self._mark()
        if self._last is not None and not record.beside:
            self._pending.append((record, self._last, end, self._waits))
            self._waits = []
        else:
            self.drop_waits()
        self._last = end
        while len(self._pending) > READ_FROM and self._pending[0][2].query():
            self._settle()

    def finish(self) -> None:
        """Watching is over: now it may be waited for."""
        self._cuda.synchronize(self._device)
        while self._pending:
            self._settle()

    def _settle(self) -> None:
        record, start, end, waits = self._pending.popleft()
        record.gpu_seconds = start.elapsed_time(end) / 1e3
        record.starved_seconds = sum(before.elapsed_time(after) for before, after in waits) / 1e3
        self._free.append(start)
        for pair in waits:
            self._free.extend(pair)

    def _mark(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        raw = self._raw_stream(self._index)
        if raw != self._known:  # asking for the pointer is cheap, making a stream's object is not
            self._stream, self._known = self._cuda.current_stream(self._device), raw
        event.record(self._stream)
        return event
