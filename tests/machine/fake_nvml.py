"""A driver without a GPU: a module to stand in for `pynvml`, with cards that answer what a test tells them.

    driver = install(monkeypatch, [h200(), lost_gpu()])
    driver.gpus[0].answers["nvmlDeviceGetTemperature"] = 83          # a value,
    driver.gpus[0].answers["nvmlDeviceGetPowerUsage"] = Refuse("NVML_ERROR_NO_PERMISSION")     # an error,
    driver.gpus[0].answers["nvmlDeviceGetUtilizationRates"] = lambda: next(readings)           # or what comes next
    driver.gpus[0].fail("NVML_ERROR_GPU_IS_LOST")                    # the card falls off the bus

Constants, structures and exceptions are the real module's, so a wrong name fails here as it would there.
A function that no card answers raises "not supported", as a driver does for a card that lacks it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml as real

GIB = 1024**3


@dataclass
class Refuse:
    """An answer that is an error."""

    error: str


@dataclass(eq=False)
class FakeGpu:
    """A card, or a slice of one; it is its own handle."""

    answers: dict[str, Any] = field(default_factory=dict)
    """NVML function -> value, Refuse, or a callable that is given the arguments after the handle."""
    slices: dict[int, FakeGpu] = field(default_factory=dict)
    """Position -> slice; positions need not be contiguous."""
    gpm: dict[int, float] | None = None
    """GPM metric -> its value between any two samples; None: the card has no GPM."""
    closed: str | None = None
    """The error that opening the card by its index raises."""
    broken: str | None = None

    def fail(self, error: str) -> None:
        """From now on every call on this card raises the error."""
        self.broken = error

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if self.broken:
            raise real.NVMLError(getattr(real, self.broken))
        value = self.answers.get(name, Refuse("NVML_ERROR_NOT_SUPPORTED"))
        if isinstance(value, Callable):
            value = value(*args)
        if isinstance(value, Refuse):
            raise real.NVMLError(getattr(real, value.error))
        return value


class FakeNvml:
    """What `import pynvml` gives while it is installed."""

    def __init__(self, gpus: Sequence[FakeGpu] = (), *, init_error: str | None = None) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        self.open_count = 0
        self.calls: list[str] = []
        self.samples: dict[int, tuple[Any, FakeGpu | None]] = {}
        self.system = {"nvmlSystemGetDriverVersion": "580.159.04", "nvmlSystemGetCudaDriverVersion_v2": 13000}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or isinstance(getattr(real, name), type):
            return getattr(real, name)  # a constant, a structure or an exception; AttributeError when there is none
        getattr(real, name)

        def call(*args: Any) -> Any:
            self._enter(name)
            if name in self.system:
                return self.system[name]
            if args and isinstance(args[0], FakeGpu):
                return args[0].answer(name, args[1:])
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)

        return call

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if not self.open_count:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("nvmlInit")
        if self.init_error:
            raise real.NVMLError(getattr(real, self.init_error))
        self.open_count += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")
        self.open_count -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._enter("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self.gpus):
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        gpu = self.gpus[index]
        if gpu.closed or gpu.broken:
            raise real.NVMLError(getattr(real, gpu.closed or gpu.broken))
        return gpu

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetMaxMigDeviceCount")
        return 7 if gpu.answers.get("nvmlDeviceGetMigMode", [0])[0] else 0  # 0 while it is off

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex")
        if index not in gpu.slices:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return gpu.slices[index]

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:  # noqa: N802
        self._enter("nvmlGpmQueryDeviceSupport")
        if gpu.broken:
            gpu.answer("", ())
        return real.c_nvmlGpmSupport_t(version=real.NVML_GPM_SUPPORT_VERSION, isSupportedDevice=gpu.gpm is not None)

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self._enter("nvmlGpmSampleAlloc")
        room = ctypes.create_string_buffer(8)
        pointer = ctypes.cast(room, real.c_nvmlGpmSample_t)
        self.samples[_address(pointer)] = (room, None)
        return pointer

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self._enter("nvmlGpmSampleFree")
        del self.samples[_address(sample)]  # a second free is a KeyError: the real one corrupts memory

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> Any:  # noqa: N802
        self._enter("nvmlGpmSampleGet")
        if gpu.broken or gpu.gpm is None:
            gpu.answer("nvmlGpmSampleGet", ())
        self.samples[_address(sample)] = (self.samples[_address(sample)][0], gpu)
        return sample

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, gpu_instance: int, sample: Any) -> Any:  # noqa: N802
        chosen = [part for part in gpu.slices.values() if part.answers["nvmlDeviceGetGpuInstanceId"] == gpu_instance]
        return self.nvmlGpmSampleGet(chosen[0], sample)

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        self._enter("nvmlGpmMetricsGet")
        before, after = (self.samples[_address(sample)][1] for sample in (request.sample1, request.sample2))
        assert before is after is not None, "GPM compares two filled samples of one card"
        for metric in request.metrics[: request.numMetrics]:
            known = before.gpm is not None and metric.metricId in before.gpm
            metric.nvmlReturn = real.NVML_SUCCESS if known else real.NVML_ERROR_NOT_SUPPORTED
            metric.value = before.gpm[metric.metricId] if known else 0.0
        return request


def install(monkeypatch: Any, gpus: Sequence[FakeGpu] = (), *, init_error: str | None = None) -> FakeNvml:
    """Put the fake where `import pynvml` finds it, for one test."""
    fake = FakeNvml(gpus, init_error=init_error)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def card(name: str, *, uuid: str, pci: str, total: int, capability: tuple[int, int], architecture: str) -> FakeGpu:
    """A healthy idle card with the figures that every card has."""
    return FakeGpu(
        answers={
            "nvmlDeviceGetName": name,
            "nvmlDeviceGetUUID": uuid,
            "nvmlDeviceGetPciInfo": real.nvmlPciInfo_t(busId=pci.encode()),
            "nvmlDeviceGetMemoryInfo": real.c_nvmlMemory_t(total=total, free=total - GIB, used=GIB),
            "nvmlDeviceGetCudaComputeCapability": capability,
            "nvmlDeviceGetArchitecture": getattr(real, f"NVML_DEVICE_ARCH_{architecture}"),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "nvmlDeviceGetDecoderUtilization": [0, 100000],
            "nvmlDeviceGetTemperature": 31,
            "nvmlDeviceGetPowerUsage": 76_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
            "nvmlDeviceGetPcieThroughput": 0,
            "nvmlDeviceGetComputeRunningProcesses": list,
            "nvmlDeviceGetGraphicsRunningProcesses": list,
        }
    )


def h200(*, number: int = 0) -> FakeGpu:
    """A whole H200, MIG switched off, with GPM and JPEG engines."""
    gpu = card(
        "NVIDIA H200",
        uuid=f"GPU-4d8f0a1c-52a5-6f0e-9c1b-0000000000{number:02d}",
        pci=f"00000000:{0x19 + number:02X}:00.0",
        total=150_754_820_096,
        capability=(9, 0),
        architecture="HOPPER",
    )
    gpu.answers |= {
        "nvmlDeviceGetJpgUtilization": [0, 100000],
        "nvmlDeviceGetMigMode": [0, 0],
        # the profiles that it could be divided into, as read from a real one: 1g, 2g, 3g, 4g, 7g
        "nvmlDeviceGetGpuInstanceProfileInfo": _profiles((16, 1, 1), (32, 2, 2), (60, 3, 3), (64, 4, 4), (132, 7, 7)),
    }
    gpu.gpm = {
        real.NVML_GPM_METRIC_SM_UTIL: 0.0,
        real.NVML_GPM_METRIC_SM_OCCUPANCY: 0.0,
        real.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 0.0,
        real.NVML_GPM_METRIC_DRAM_BW_UTIL: 0.0,
    }
    return gpu


def v100(*, number: int = 0) -> FakeGpu:
    """A V100: no MIG, no GPM, no JPEG engine."""
    return card(
        "Tesla V100-SXM2-32GB",
        uuid=f"GPU-77aa0b3e-91c4-2d6f-8e55-0000000000{number:02d}",
        pci=f"00000000:{0x3B + number:02X}:00.0",
        total=34_089_730_048,
        capability=(7, 0),
        architecture="VOLTA",
    )


def a100_mig() -> FakeGpu:
    """An A100 divided in two: a 3g.20gb and a 2g.10gb slice, at positions 0 and 2."""
    gpu = card(
        "NVIDIA A100-SXM4-40GB",
        uuid="GPU-c5dd6a4e-1f60-8a2b-4b39-a3b06f3a7d01",
        pci="00000000:87:00.0",
        total=42_949_672_960,
        capability=(8, 0),
        architecture="AMPERE",
    )
    gpu.answers |= {
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetJpgUtilization": [0, 100000],
        "nvmlDeviceGetUtilizationRates": Refuse("NVML_ERROR_NOT_SUPPORTED"),  # a divided GPU has none as a whole
        "nvmlDeviceGetGpuInstanceProfileInfo": _profiles((14, 0, 0), (28, 1, 0), (42, 2, 0), (56, 2, 0), (98, 5, 1)),
    }
    gpu.slices = {
        0: _slice("3g.20gb", number=0, gpu_instance=2, sms=42, gib=20, decoders=2, jpegs=0),
        2: _slice("2g.10gb", number=2, gpu_instance=3, sms=28, gib=10, decoders=1, jpegs=0),
    }
    return gpu


def _profiles(*known: tuple[int, int, int]) -> Callable[..., Any]:
    """(multiprocessors, decoders, JPEG engines) of the first profiles; the card has no others."""

    def answer(number: int, version: int = 2) -> Any:
        if number >= len(known):
            return Refuse("NVML_ERROR_NOT_SUPPORTED")
        profile = real.c_nvmlGpuInstanceProfileInfo_v2_t()
        profile.multiprocessorCount, profile.decoderCount, profile.jpegCount = known[number]
        return profile

    return answer


def _slice(profile: str, *, number: int, gpu_instance: int, sms: int, gib: int, decoders: int, jpegs: int) -> FakeGpu:
    return FakeGpu(
        answers={
            "nvmlDeviceGetName": f"NVIDIA A100-SXM4-40GB MIG {profile}",
            "nvmlDeviceGetUUID": f"MIG-6a1b2c3d-0000-5000-8000-0000000000{number:02d}",
            "nvmlDeviceGetMemoryInfo": real.c_nvmlMemory_t(total=gib * GIB, free=gib * GIB - GIB, used=GIB),
            "nvmlDeviceGetAttributes": real.c_nvmlDeviceAttributes(
                multiprocessorCount=sms, sharedDecoderCount=decoders, sharedJpegCount=jpegs, memorySizeMB=gib * 1024
            ),
            "nvmlDeviceGetGpuInstanceId": gpu_instance,
            "nvmlDeviceGetComputeRunningProcesses": list,
        }
    )


def lost_gpu() -> FakeGpu:
    """A card that fell off the bus before anyone opened it."""
    return FakeGpu(closed="NVML_ERROR_GPU_IS_LOST", broken="NVML_ERROR_GPU_IS_LOST")


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
