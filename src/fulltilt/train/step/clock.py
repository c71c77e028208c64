"""How long steps take, on the host's clock and the device's, without ever waiting for the device.

CUDA events mark the beginning of a step, the end of its copies, and its end. They come from a pool and are read only
once `query()` says that the device has passed them. Steps shorter than a few milliseconds are marked now and then.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

import torch

from fulltilt.measure.statistics import percentile

_KEPT = 512
"""Steps that the figures are taken over: the latest."""
_SHORT_SECONDS = 0.003
_SHORT_EVERY = 16
_MOST_PENDING = 64
_NAMES = frozenset(
    {
        "gpu_utilization", "avg_gpu_time", "avg_cpu_time", "cpu_ratio", "data_wait_seconds", "copy_seconds",
        "step_p50", "step_p99", "samples_per_second", "gpu_memory_bytes", "background_seconds",
    }
)  # fmt: skip


class PerformanceStats(dict[str, float]):
    """Figures by name. One that could not be taken is absent; asked for all the same, it is nan, never 0."""

    def __missing__(self, name: str) -> float:
        if name in _NAMES:
            return float("nan")
        raise KeyError(f"{name}; figures are {', '.join(sorted(_NAMES))}")


class StepClock:
    """Times of the latest steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = device.type == "cuda"
        self._pool: list[list[Any]] = []
        self._clear()

    def restart(self) -> None:
        """Forget everything, the most memory that was held included: what came before was no training."""
        self._clear()
        if self._gpu:
            torch.cuda.empty_cache()  # what trials had, and nobody has any more
            torch.cuda.reset_peak_memory_stats(self._device)

    def _clear(self) -> None:
        self._began: float | None = None
        self._steps = 0
        self._samples: deque[int] = deque(maxlen=_KEPT)
        self._between: deque[float] = deque(maxlen=_KEPT)
        self._host: deque[float] = deque(maxlen=_KEPT)
        self._waits: deque[float] = deque(maxlen=_KEPT)
        self._busy: deque[float] = deque(maxlen=_KEPT)
        self._copies: deque[float] = deque(maxlen=_KEPT)
        self._pending: deque[list[Any]] = deque()
        self._marks: list[Any] | None = None

    def pause(self) -> None:
        """Something else than training comes next: the time until the next step is no step's."""
        self._began = None

    def waited(self, seconds: float) -> None:
        self._waits.append(seconds)

    def begin(self) -> None:
        now = perf_counter()
        if self._began is not None:
            self._between.append(now - self._began)
        self._began = now
        if self._gpu and self._steps % self._every() == 0 and len(self._pending) < _MOST_PENDING:
            self._marks = self._pool.pop() if self._pool else [_event(), _event(), _event(), False]
            self._marks[3] = False
            self._record(0)
        self._steps += 1

    def copied(self) -> None:
        """The batch came from the host; its copies have been launched."""
        if self._marks is not None:
            self._record(1)
            self._marks[3] = True

    def end(self, samples: int) -> None:
        self._samples.append(samples)
        if self._began is not None:
            self._host.append(perf_counter() - self._began)
        if self._marks is not None:
            self._record(2)
            self._pending.append(self._marks)
            self._marks = None
            self._read()

    def figures(self) -> dict[str, float]:
        """Means over the latest steps, in seconds; what could not be taken is absent."""
        self._read()
        found: dict[str, float] = {}
        between = _mean(self._between)
        host, busy = _mean(self._host), _mean(self._busy)
        if host is not None:
            found["avg_cpu_time"] = host
        if busy is not None:
            found["avg_gpu_time"] = busy
            if between:
                found["gpu_utilization"] = min(100.0, 100.0 * busy / between)
            if host is not None:
                found["cpu_ratio"] = host / (host + busy)
        for name, values in (("data_wait_seconds", self._waits), ("copy_seconds", self._copies)):
            mean = _mean(values)
            if mean is not None:
                found[name] = mean
        if between:
            ordered = sorted(self._between)
            found["step_p50"], found["step_p99"] = percentile(ordered, 50), percentile(ordered, 99)
            found["samples_per_second"] = sum(self._samples) / len(self._samples) / between
        if self._gpu:
            # What max_memory_reserved gives, without a hundred figures being named on the way to one. What a CUDA graph
            # works in is reserved for it and never allocated again: counting allocations would leave it out.
            memory = torch.cuda.memory_stats_as_nested_dict(self._device)
            found["gpu_memory_bytes"] = float(memory["reserved_bytes"]["all"]["peak"])
        return found

    def _record(self, mark: int) -> None:
        """On the stream of the step's device, which need not be the current one."""
        if self._marks is not None:
            self._marks[mark].record(torch.cuda.current_stream(self._device))

    def _every(self) -> int:
        return _SHORT_EVERY if self._between and self._between[-1] < _SHORT_SECONDS else 1

    def _read(self) -> None:
        while self._pending and self._pending[0][2].query():
            marks = self._pending.popleft()
            start, copied, end, has_copy = marks
            if has_copy:
                self._copies.append(start.elapsed_time(copied) / 1e3)
                self._busy.append(copied.elapsed_time(end) / 1e3)
            else:
                self._busy.append(start.elapsed_time(end) / 1e3)
            self._pool.append(marks)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None
