"""CPU time of worker processes and threads: whether cores or something else holds them up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil


def cpu_seconds(pids: Iterable[int], tids: Iterable[int] = ()) -> dict[int, float]:
    """CPU time so far of these processes, and of these threads of this one."""
    spent: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            times = psutil.Process(pid).cpu_times()
            spent[pid] = times.user + times.system
    wanted = set(tids)
    if wanted:
        threads = psutil.Process().threads()
        spent.update((thread.id, thread.user_time + thread.system_time) for thread in threads if thread.id in wanted)
    return spent


class BusyMeter:
    """Cores in use between two looks."""

    def __init__(self, read: Callable[[], dict[int, float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self.begin()

    def begin(self) -> None:
        """Measure from here."""
        self._since, self._spent = self._clock(), self._read()

    def cores(self) -> float | None:
        """CPU time per second since `begin`; None where other workers are there by now, or nothing can be read."""
        elapsed, spent = self._clock() - self._since, self._read()
        if not spent or spent.keys() != self._spent.keys() or elapsed <= 0.0:
            return None
        return (sum(spent.values()) - sum(self._spent.values())) / elapsed
