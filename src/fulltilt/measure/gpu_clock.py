"""The GPU's clock over a training loop: events put into its stream, read once they have passed, never waited for.

    │ ┊wait┊ step │ step │ step │ ┊wait┊ step │ step │        events at a window's ends, and around its first wait
    └───────── a window ────────┴────── the next ────┘

An event costs the host microseconds. Short steps share them: a window is as long as keeps them cheap, and its steps get
equal parts of its time, so that all of them together have what the GPU took.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import ceil
from random import Random
from statistics import fmean
from typing import Any

from fulltilt.measure.timeline import Record

EVENTS = 640
"""Made in advance: as many as a run of 200 steps needs."""
READ_FROM = 200
"""Windows that may be unread before any is: a run of that length reads its events when it is over."""
WINDOW_COST_NS = 25_000
"""Of the host: three events recorded, one asked for, two differences read, between kernels that crowd its caches."""
MOST_SHARE = 0.0025
"""Of the time, for events."""
MOST_STEPS = 16
"""Of a window, on average: a run of 200 steps has a dozen still."""
LATELY = 8
"""Windows whose steps tell how long the next ones will be; an odd one among them is soon forgotten."""

Pair = tuple[Any, Any]


def window_steps(step_ns: float) -> int:
    """How many steps share their events on average, so that these cost no more than their share."""
    return min(MOST_STEPS, max(1, ceil(WINDOW_COST_NS / (MOST_SHARE * max(step_ns, 1)))))


class GpuClock:
    """An event at the end of each window of steps, and a pair around its first step's waits for batches.

    The pair's time on the GPU's clock is how long the GPU had nothing to do: with work queued, both events pass
    together, however long the host waited.
    """

    def __init__(self, device: Any, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        import torch

        self.wants_waits = True
        """The waits of the step that goes on are to be told."""
        self._cuda: Any = torch.cuda
        self._device = device
        self._clock = clock
        self._raw_stream: Any = torch._C._cuda_getCurrentRawStream
        self._index = device.index if device.index is not None else self._cuda.current_device()
        self._stream = self._cuda.current_stream(device)
        self._known = self._raw_stream(self._index)
        self._capturing: Any = torch._C._cuda_isCurrentStreamCapturing
        self._last: Any = None
        self._began_ns = 0
        self._records: list[Record] = []
        self._length = 1
        self._lately: deque[float] = deque(maxlen=LATELY)
        # Workers hand over in turns: windows of one length would meet the same one's batches again and again.
        self._draws = Random(0)
        self._wait: Any = None
        self._waits: list[Pair] = []
        self._pending: deque[tuple[list[Record], Any, Any, list[Pair]]] = deque()
        self._free: list[Any] = []
        self._free = [self._mark() for _ in range(EVENTS)]  # an event is made by the driver when it is first recorded

    def capturing(self) -> bool:
        """A graph is being captured: nothing may be put into the stream."""
        return bool(self._capturing())

    def wait_began(self) -> None:
        self._wait = self._mark() if self.wants_waits and not self._capturing() else None

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
        """A step with something beside it (an evaluation, say) has no figure of its own on the GPU's clock, nor has
        what came before it in its window."""
        self._records.append(record)
        self.wants_waits = False
        if record.beside or self._last is None or len(self._records) >= self._length:
            self._close(whole=not record.beside and self._last is not None)

    def pause(self) -> None:
        """The steps that follow, from the end of this one on, are passed by."""
        if self._records and self._last is not None:
            self._close(whole=True)
        self._last, self._records = None, []
        self.drop_waits()

    def resume(self) -> None:
        """At the end of a step that was passed by."""
        self._close(whole=False)

    def finish(self) -> None:
        """Watching is over, for now at least: it may be waited for. A window that is not whole has no figures."""
        self._last, self._records = None, []
        self.drop_waits()
        self._cuda.synchronize(self._device)
        while self._pending:
            self._settle()

    def _close(self, *, whole: bool) -> None:
        """A window ends, and the next begins."""
        captures = self._capturing()
        end = None if captures else self._mark()
        now_ns = self._clock()
        if whole and not captures:
            self._pending.append((self._records, self._last, end, self._waits))
            self._lately.append((now_ns - self._began_ns) / len(self._records))
            self._waits = []
            steps = window_steps(fmean(self._lately))
            self._length = self._draws.randint(1, 2 * steps - 1)
        else:
            self.drop_waits()
        self._last, self._began_ns, self._records = end, now_ns, []
        self.wants_waits = True
        while len(self._pending) > READ_FROM and self._pending[0][2].query():
            self._settle()

    def _settle(self) -> None:
        records, start, end, waits = self._pending.popleft()
        seconds = start.elapsed_time(end) / 1e3 / len(records)
        for record in records:
            record.gpu_seconds = seconds
        records[0].starved_seconds = sum(before.elapsed_time(after) for before, after in waits) / 1e3
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
