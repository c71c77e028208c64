"""What is known now: the last sample, completed with figures that are taken less often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from fulltilt.machine.sample import CpuSample, GpuSample, Sample

_Part = TypeVar("_Part", GpuSample, CpuSample)

_NAMES = ("name", "uuid")
_SELDOM_GPU = (
    *_NAMES,
    "power_limit_w",
    "clock_sm_max_mhz",
    "throttle",
    "processes",
    "pcie_rx_mb_s",
    "pcie_tx_mb_s",
)
_SELDOM_CPU = ("ram_used", "ram_total", "disk_read_mb_s")


class Latest:
    """Carries seldom-taken figures forward; a figure that every sample should have is never made up."""

    def __init__(self) -> None:
        self._gpus: dict[str, GpuSample] = {}
        self._cpu = CpuSample()

    def complete(self, sample: Sample) -> Sample:
        """The sample with the last known value of each figure that is taken less often."""
        gpus = tuple(
            _carried(self._gpus.get(gpu.label), gpu, _SELDOM_GPU if gpu.lost is None else _NAMES) for gpu in sample.gpus
        )
        self._gpus = {gpu.label: gpu for gpu in gpus}
        self._cpu = _carried(self._cpu, sample.cpu, _SELDOM_CPU)
        return replace(sample, gpus=gpus, cpu=self._cpu)


def _carried(before: _Part | None, now: _Part, names: tuple[str, ...]) -> _Part:
    if before is None:
        return now
    missing: dict[str, Any] = {
        name: value for name in names if getattr(now, name) is None and (value := getattr(before, name)) is not None
    }
    return replace(now, **missing) if missing else now
