"""One GPU read again and again: what changes quickly at every tick, what is slow to ask apart from it.

The handle is opened once. A GPU that stops answering is read no more; its samples say why from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fulltilt.errors import UnavailableError
from fulltilt.machine.gpm import Gpm
from fulltilt.machine.nvml import Device, Driver
from fulltilt.machine.sample import GpuSample

_Answer = TypeVar("_Answer")

# Bits of nvmlDeviceGetCurrentClocksEventReasons. "Idle" and "application clocks" hold nothing back that anyone wants.
_THROTTLE = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown (software)",
    0x040: "thermal slowdown (hardware)",
    0x080: "power brake",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReadings:
    """What takes the driver milliseconds to answer."""

    throttle: tuple[str, ...] | None = None
    power_limit_w: float | None = None
    processes: dict[str, int] | None = None
    pcie_rx_mb_s: float | None = None
    pcie_tx_mb_s: float | None = None


class GpuReader:
    """Reads one GPU or MIG slice."""

    def __init__(self, driver: Driver, device: Device) -> None:
        self._driver = driver
        self.device = device
        self.lost: str | None = device.problem
        self.label = device.label
        self.name: str | None = None
        self._gpm: Gpm | None = None
        self._sensors = device.handle if device.parent is None else device.parent  # a slice has no sensors of its own
        self._memory_version: tuple[Any, ...] = ()
        self._clock_max: int | None = None
        self._new = True
        self._survive(self._open)

    def prime(self, at: float) -> None:
        """Take the first of the two GPM samples that `read` will compare."""
        if self._gpm is not None:
            self._survive(lambda: self._gpm and self._gpm.read(at))

    def read(self, at: float) -> GpuSample:
        """This GPU now; `at` is the moment on the caller's steady clock."""
        values = self._survive(lambda: self._values(at)) or {}
        if self.lost is not None:
            values = {"lost": self.lost}
        if self._new:  # what never changes is said once
            values |= {"name": self.name, "uuid": self.device.uuid, "clock_sm_max_mhz": self._clock_max}
            self._new = False
        return GpuSample(index=self.device.index, slice=self.device.slice_index, **values)

    def read_slow(self) -> SlowReadings:
        """The slow figures; may block for tens of milliseconds, so ask from another thread."""
        return self._survive(self._slow_values) or SlowReadings()

    def close(self) -> None:
        """Give back what the driver holds for this GPU."""
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None

    def _open(self) -> None:
        driver, handle = self._driver, self.device.handle
        self.name = driver.read("nvmlDeviceGetName", handle)
        self._clock_max = driver.read("nvmlDeviceGetMaxClockInfo", self._sensors, driver.api.NVML_CLOCK_SM)
        # The second version leaves out what the driver keeps for itself; older drivers don't have it.
        version = getattr(driver.api, "nvmlMemory_v2", None)
        if version is not None and driver.read("nvmlDeviceGetMemoryInfo", handle, version) is not None:
            self._memory_version = (version,)
        if Gpm.supports(driver, self.device):
            self._gpm = Gpm(driver, self.device)

    def _values(self, at: float) -> dict[str, Any]:
        read, handle, sensors, api = self._driver.read, self.device.handle, self._sensors, self._driver.api
        rates = read("nvmlDeviceGetUtilizationRates", handle)
        memory = read("nvmlDeviceGetMemoryInfo", handle, *self._memory_version)
        milliwatts = read("nvmlDeviceGetPowerUsage", sensors)
        return {
            "util": None if rates is None else rates.gpu,
            "mem_used": None if memory is None else memory.used,
            "mem_total": None if memory is None else memory.total,
            "temp": read("nvmlDeviceGetTemperature", sensors, api.NVML_TEMPERATURE_GPU),
            "power_w": None if milliwatts is None else milliwatts / 1000,
            "clock_sm_mhz": read("nvmlDeviceGetClockInfo", sensors, api.NVML_CLOCK_SM),
            **(self._gpm.read(at) if self._gpm is not None else {}),
        }

    def _slow_values(self) -> SlowReadings:
        read, sensors, api = self._driver.read, self._sensors, self._driver.api
        reasons = read("nvmlDeviceGetCurrentClocksEventReasons", sensors)
        if reasons is None:  # the name before driver 535
            reasons = read("nvmlDeviceGetCurrentClocksThrottleReasons", sensors)
        milliwatts = read("nvmlDeviceGetEnforcedPowerLimit", sensors)
        kilobytes: dict[str, int | None] = {"rx": None, "tx": None}
        if self._gpm is None and self.device.parent is None:  # GPM has it for nothing; this waits 20 ms for each
            kilobytes["rx"] = read("nvmlDeviceGetPcieThroughput", sensors, api.NVML_PCIE_UTIL_RX_BYTES)
            kilobytes["tx"] = read("nvmlDeviceGetPcieThroughput", sensors, api.NVML_PCIE_UTIL_TX_BYTES)
        return SlowReadings(
            throttle=None if reasons is None else tuple(word for bit, word in _THROTTLE.items() if reasons & bit),
            power_limit_w=None if milliwatts is None else milliwatts / 1000,
            processes=self._processes(),
            pcie_rx_mb_s=None if kilobytes["rx"] is None else kilobytes["rx"] / 1000,
            pcie_tx_mb_s=None if kilobytes["tx"] is None else kilobytes["tx"] / 1000,
        )

    def _processes(self) -> dict[str, int] | None:
        listed = self._driver.read("nvmlDeviceGetComputeRunningProcesses", self.device.handle)
        if listed is None:
            return None
        return {str(process.pid): process.usedGpuMemory for process in listed if process.usedGpuMemory is not None}

    def _survive(self, call: Callable[[], _Answer]) -> _Answer | None:
        """The call's answer; None from the moment at which the GPU stopped answering."""
        if self.lost is not None:
            return None
        try:
            return call()
        except UnavailableError as error:
            self.lost = str(error)
            return None
