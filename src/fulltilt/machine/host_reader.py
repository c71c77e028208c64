"""The host read again and again: its cores, iowait, RAM and disk reads, each between this reading and the last."""

from __future__ import annotations

import os
from typing import Any

import psutil

from fulltilt.machine.memory import read_memory
from fulltilt.machine.sample import CpuSample

_LEAST_SECONDS = 0.9
"""Between two looks at RAM and disks, which cost more than the cores do and change less."""


class HostReader:
    """Reads the cores that this process may use."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self._before: list[Any] = []
        self._disk_before: tuple[float, int] | None = None
        self._looked_at: float | None = None

    def prime(self, at: float) -> None:
        """Take the counts from which the first reading will be the difference."""
        self._before = self._times()
        self._disk(at)

    def read(self, at: float) -> CpuSample:
        """The host since the last reading; `at` is the moment on the caller's steady clock."""
        now = self._times()
        pairs = zip(self._before, now, strict=False)  # a core that went offline meanwhile is left out
        spans = [span for before, after in pairs if (span := _span(before, after)) is not None]
        self._before = now
        cores = tuple(busy for busy, _ in spans)
        return CpuSample(
            util=sum(cores) / len(cores) if cores else None,
            iowait=sum(wait for _, wait in spans) / len(spans) if spans and hasattr(now[0], "iowait") else None,
            cores=cores or None,
            **self._ram_and_disk(at),
        )

    def _ram_and_disk(self, at: float) -> dict[str, Any]:
        if self._looked_at is not None and at - self._looked_at < _LEAST_SECONDS:
            return {}
        self._looked_at = at
        ram = read_memory()
        return {
            "ram_used": ram.usable_bytes - ram.available_bytes,
            "ram_total": ram.usable_bytes,
            "disk_read_mb_s": self._disk(at),
        }

    def _times(self) -> list[Any]:
        times = psutil.cpu_times(percpu=True)
        if self._cores is None or self._cores[-1] >= len(times):  # some cores are offline: their numbers don't match
            return times
        return [times[core] for core in self._cores]

    def _disk(self, at: float) -> float | None:
        counters = psutil.disk_io_counters()
        if counters is None:
            return None
        before, self._disk_before = self._disk_before, (at, counters.read_bytes)
        if before is None or at <= before[0]:
            return None
        return max(0, counters.read_bytes - before[1]) / 1e6 / (at - before[0])


def _span(before: Any, after: Any) -> tuple[float, float] | None:
    """Percent busy and percent waiting for a disk between two readings of one core; None when no time passed."""
    total = sum(after) - sum(before) - _guest(after) + _guest(before)  # guest time is counted in user time already
    if total <= 0:
        return None
    waiting = max(0.0, getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0))
    idle = max(0.0, after.idle - before.idle)
    busy = total - idle - waiting
    return min(100.0, max(0.0, 100 * busy / total)), min(100.0, 100 * waiting / total)


def _guest(times: Any) -> float:
    return float(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0))
