"""Reads the whole machine into samples: the GPUs, the host, and one process tree where asked for.

    tick ──► HostReader, GpuReader.read, ProcessReader.read ──► Sample
                            ▲
    every 5 s, on a thread ─┘  GpuReader.read_slow, descendants: what may block for tens of milliseconds

Slow figures are in the first sample after they were taken and absent from the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fulltilt.errors import InputError, UnavailableError
from fulltilt.machine.closing import Closing
from fulltilt.machine.gpu_reader import GpuReader, SlowReadings
from fulltilt.machine.host_reader import HostReader
from fulltilt.machine.nvml import Device, Driver
from fulltilt.machine.process_reader import ProcessReader
from fulltilt.machine.sample import GpuSample, Sample

SLOW_SECONDS = 5.0


class Sampler(Closing):
    """Opens the driver once; `read` gives one sample. A machine without a driver has a `problem` and no GPUs."""

    def __init__(self, *, gpus: Sequence[str] = (), pid: int | None = None, slow_seconds: float = SLOW_SECONDS) -> None:
        self.problem: str | None = None
        """Why no GPU is read, in one sentence."""
        self._process = None if pid is None else ProcessReader(pid)
        self._driver: Driver | None = None
        self._gpus: list[GpuReader] = []
        try:
            self._open(gpus)
        except UnavailableError as error:
            if gpus:
                raise
            self.problem = str(error)
        self._host = HostReader()
        self._processes: dict[str, Mapping[str, int]] = {}
        self._slow: deque[dict[str, SlowReadings]] = deque(maxlen=1)  # the newest, from the thread to the next tick
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._slow_seconds = slow_seconds
        self._start = time.monotonic()

    @property
    def labels(self) -> tuple[str, ...]:
        """The GPUs that are read, as `--gpu` names them."""
        return tuple(gpu.label for gpu in self._gpus)

    @property
    def ended(self) -> str | None:
        """Why there is nothing left to watch, once the process that was asked for has ended."""
        if self._process is None or not self._process.ended:
            return None
        return f"process {self._process.pid} ({self._process.name}) has ended"

    def start(self) -> None:
        """Set the clock to zero and take the first reading of all that is a difference of two."""
        self._start = time.monotonic()
        self._host.prime(self._start)
        for gpu in self._gpus:
            gpu.prime(self._start)
        if self._process is not None:
            self._process.prime(self._start)
        if self._gpus or self._process is not None:
            self._thread = threading.Thread(target=self._read_slowly, name="fulltilt-slow-readings", daemon=True)
            self._thread.start()

    def read(self) -> Sample:
        """The machine now, and since the last reading."""
        now = time.monotonic()
        slow = self._slow.popleft() if self._slow else {}
        self._processes.update({label: got.processes for label, got in slow.items() if got.processes is not None})
        return Sample(
            t=now - self._start,
            cpu=self._host.read(now),
            gpus=tuple(_joined(gpu.read(now), slow.get(gpu.label)) for gpu in self._gpus),
            process=None if self._process is None else self._process.read(now, self._processes),
        )

    def read_slow(self) -> None:
        """Take the slow readings; the next sample carries them."""
        if self._process is not None:
            self._process.find_descendants()
        self._slow.append({gpu.label: gpu.read_slow() for gpu in self._gpus if gpu.lost is None})

    def close(self) -> None:
        """Stop reading and let go of the driver; a second call does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()  # it must not be inside a driver call when the driver is closed
        for gpu in self._gpus:
            gpu.close()
        if self._driver is not None:
            self._driver.close()

    def _open(self, wanted: Sequence[str]) -> None:
        driver = Driver()
        try:
            units = [unit for device in driver.devices() for unit in device.units]
            if not units:
                raise UnavailableError("no GPU can be read: the NVIDIA driver lists none that can be computed on")
            self._gpus = [GpuReader(driver, unit) for unit in _choose(units, wanted)]
        except BaseException:
            driver.close()
            raise
        self._driver = driver

    def _read_slowly(self) -> None:
        while True:
            self.read_slow()
            if self._stop.wait(self._slow_seconds):
                return


def _joined(gpu: GpuSample, slow: SlowReadings | None) -> GpuSample:
    if slow is None or gpu.lost is not None:
        return gpu
    values = {name: value for name in SlowReadings.__slots__ if (value := getattr(slow, name)) is not None}
    return replace(gpu, **values)


def _choose(units: Sequence[Device], wanted: Sequence[str]) -> list[Device]:
    """The units that `wanted` names, by index (`0`; `0:2` is a slice) or UUID; all of them when it names none."""
    chosen: list[Device] = []
    for name in wanted:
        found = [unit for unit in units if name in (str(unit.index), unit.label, unit.uuid)]
        if not found:
            there = ", ".join(f"{unit.label} ({unit.uuid})" for unit in units)
            raise InputError(f"--gpu: there is no GPU {name!r}; there are: {there}")
        chosen += [unit for unit in found if unit not in chosen]
    return chosen if wanted else list(units)
