"""How much memory there is, and how much a step took at its peak: the GPU's, or RAM."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from fulltilt.machine.memory import read_memory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK_RSS = "5"
"""What proc(5) has to be told to begin a new VmHWM."""
_POLL_SECONDS = 0.002


class Gauge(Protocol):
    """Bytes of this process on one device."""

    def room_bytes(self) -> int:
        """What the process could take in all, what it has already included."""

    def held_bytes(self) -> int:
        """What it has now."""

    def begin(self) -> None:
        """From here on the peak counts."""

    def peak_bytes(self) -> int: ...

    def release(self) -> None:
        """Give back what nobody uses."""


def gauge_for(device: torch.device) -> Gauge:
    return GpuGauge(device) if device.type == "cuda" else RamGauge()


class GpuGauge:
    """What torch has allocated on a GPU. Its caches are room, whoever else uses the GPU is not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def room_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        allowed = int(torch.cuda.get_per_process_memory_fraction(self._device) * total)
        return min(free + torch.cuda.memory_reserved(self._device), allowed)

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


class RamGauge:
    """Resident memory of this process."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._resets = _can_reset()
        self._poll: _Poll | None = None

    def room_bytes(self) -> int:
        return read_memory().available_bytes + self.held_bytes()

    def held_bytes(self) -> int:
        return int(self._process.memory_info().rss)

    def begin(self) -> None:
        if self._resets:
            _CLEAR.write_text(_PEAK_RSS)
        else:
            self._poll = _Poll(self.held_bytes)

    def peak_bytes(self) -> int:
        if self._resets:
            return _peak_rss()
        assert self._poll is not None
        peak, self._poll = self._poll.stop(), None
        return peak

    def release(self) -> None:
        gc.collect()
        if self._poll is not None:
            self._poll.stop()
            self._poll = None
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # glibc keeps freed blocks, and a smaller trial after a larger one would seem as large
            trim(0)


class _Poll:
    """Looks again and again: where the kernel can't be asked for a peak since some moment."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read, self._peak = read, read()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fulltilt-peak", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._peak = max(self._peak, self._read())

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return max(self._peak, self._read())


def _can_reset() -> bool:
    """Linux; some containers mount /proc without it."""
    try:
        _CLEAR.write_text(_PEAK_RSS)
        return _peak_rss() > 0
    except OSError:
        return False


def _peak_rss() -> int:
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
