"""GPM: how much of the chip had work, from the driver's own counters (Hopper and later, no root, no daemon).

Two samples of a card are compared: the one taken now and the one before. Less than 100 ms between them gives nothing
reliable, so a call that comes too early measures nothing and keeps the older sample.
"""

from __future__ import annotations

from typing import Any

from fulltilt.machine.nvml import Device, Driver

LEAST_SECONDS = 0.1

# Field of GpuSample -> GPM metric.
_METRICS = {
    "sm": "NVML_GPM_METRIC_SM_UTIL",
    "occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "pcie_tx_mb_s": "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "pcie_rx_mb_s": "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
}
_MIB_PER_SECOND = {"pcie_tx_mb_s", "pcie_rx_mb_s"}


class Gpm:
    """The GPM readings of one GPU or MIG slice. Close it, or the driver's samples leak."""

    def __init__(self, driver: Driver, device: Device) -> None:
        self._driver = driver
        self._device = device
        self._before: Any = driver.read("nvmlGpmSampleAlloc")
        self._now: Any = driver.read("nvmlGpmSampleAlloc")
        self._taken_at: float | None = None
        api = driver.api
        self._request: Any = api.c_nvmlGpmMetricsGet_t()
        self._request.version = api.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS.values()):
            self._request.metrics[place].metricId = getattr(api, metric)

    @staticmethod
    def supports(driver: Driver, device: Device) -> bool:
        """Whether this card has GPM."""
        whole = device.handle if device.parent is None else device.parent
        support = driver.read("nvmlGpmQueryDeviceSupport", whole)
        return support is not None and bool(support.isSupportedDevice)

    def read(self, at: float) -> dict[str, float]:
        """The metrics between the last sample and now (`at`, in seconds of one clock); empty the first time."""
        if self._taken_at is not None and at - self._taken_at < LEAST_SECONDS:
            return {}
        if self._take(self._now) is None:
            return {}
        metrics = {} if self._taken_at is None else self._compare()
        self._taken_at = at
        self._before, self._now = self._now, self._before
        return metrics

    def close(self) -> None:
        """Give the samples back; a second call does nothing."""
        for sample in (self._before, self._now):
            if sample is not None:
                self._driver.read("nvmlGpmSampleFree", sample)
        self._before = self._now = None

    def _take(self, sample: Any) -> Any:
        device = self._device
        if device.parent is None:
            return self._driver.read("nvmlGpmSampleGet", device.handle, sample)
        return self._driver.read("nvmlGpmMigSampleGet", device.parent, device.gpu_instance, sample)

    def _compare(self) -> dict[str, float]:
        request, api = self._request, self._driver.api
        request.sample1, request.sample2 = self._before, self._now
        try:
            with self._driver.turn:
                api.nvmlGpmMetricsGet(request)  # not through Driver.read: its argument is no handle of a card
        except api.NVMLError:
            return {}  # this pair can't be compared, for instance after a reset of the counters; the next one may
        found = {}
        for place, name in enumerate(_METRICS):
            metric = request.metrics[place]
            if metric.nvmlReturn == api.NVML_SUCCESS and metric.value >= 0:  # a NaN compares false
                found[name] = metric.value * 1.048576 if name in _MIB_PER_SECOND else metric.value
        return found
