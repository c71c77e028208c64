"""The GPUs of this machine, and the MIG slices of a divided one, as ordinary devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fulltilt.errors import GpuLostError, UnavailableError
from fulltilt.machine.nvml import Device, Driver
from fulltilt.machine.visibility import CudaIndex, Unit, Visibility, visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, or a MIG slice of one. What the driver doesn't tell is absent."""

    index: int
    """Position in the driver's order (NVML). A slice has its GPU's."""
    slice_index: int | None = None
    """Position among its GPU's MIG slices; absent for a whole GPU."""
    uuid: str | None = None
    pci: str | None = None
    """As in lspci; a slice has its GPU's."""
    name: str | None = None
    cuda_index: int | None = None
    """What torch calls it (`cuda:0`) in this environment."""
    cuda_index_reason: str | None = None
    """Why there is no CUDA index."""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    decoders: int | None = None
    """NVDEC engines (video)."""
    jpeg_engines: int | None = None
    """NVJPG engines (stills)."""
    gpm: bool | None = None
    """Whether NVML's GPM gives SM activity, occupancy, tensor and DRAM figures."""
    problem: str | None = None
    """Why it can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the driver says."""

    gpus: tuple[Gpu, ...] = ()
    visible: int = 0
    """How many of them a process started here could compute on, one rank each."""
    driver: str | None = None
    driver_cuda: str | None = None
    """The newest CUDA that the driver runs."""
    problem: str | None = None
    """Why there are none, in one sentence."""


def read_gpus(environment: Mapping[str, str] | None = None) -> Gpus:
    """Ask the driver; a machine without one is an ordinary case."""
    try:
        with Driver() as driver:
            devices = [unit for device in driver.devices() for unit in device.units or (device,)]
            gpus = tuple(_read(driver, device) for device in devices)
            version = driver.read("nvmlSystemGetDriverVersion")
            cuda = driver.read("nvmlSystemGetCudaDriverVersion_v2")
    except UnavailableError as error:
        return Gpus(problem=str(error))
    seen = _ask_cuda(gpus) or _derive(gpus, devices, os.environ if environment is None else environment)
    return Gpus(
        gpus=tuple(
            replace(gpu, cuda_index=found.index, cuda_index_reason=found.reason)
            for gpu, found in zip(gpus, seen.indices, strict=True)
        ),
        visible=seen.count,
        driver=version,
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        problem=None if gpus else "the NVIDIA driver runs, but it finds no GPU",
    )


def _read(driver: Driver, device: Device) -> Gpu:
    gpu = Gpu(index=device.index, slice_index=device.slice_index, uuid=device.uuid, pci=device.pci)
    if device.problem is not None:
        return replace(gpu, problem=device.problem)
    try:
        gpu = replace(gpu, **_describe(driver, device))
    except GpuLostError as error:
        return replace(gpu, problem=str(error))
    if device.mig and device.slice_index is None:
        return replace(gpu, problem="MIG is on but there is no slice to compute on; `nvidia-smi mig -cgi` makes one")
    return gpu


def _describe(driver: Driver, device: Device) -> dict[str, Any]:
    whole = device.handle if device.parent is None else device.parent
    memory = driver.read("nvmlDeviceGetMemoryInfo", device.handle)
    capability = driver.read("nvmlDeviceGetCudaComputeCapability", whole)
    support = driver.read("nvmlGpmQueryDeviceSupport", whole)
    if device.parent is None:
        multiprocessors, decoders, jpegs = _engines_of_whole(driver, device)
    else:
        multiprocessors, decoders, jpegs = _engines_of_slice(driver, device)
    return {
        "name": driver.read("nvmlDeviceGetName", device.handle),
        "memory_bytes": memory and memory.total,
        "memory_free_bytes": memory and memory.free,
        "compute_capability": capability and f"{capability[0]}.{capability[1]}",
        "multiprocessors": multiprocessors,
        "decoders": decoders,
        "jpeg_engines": jpegs,
        "gpm": None if support is None else bool(support.isSupportedDevice),
    }


_Engines = tuple[int | None, int | None, int | None]


def _engines_of_slice(driver: Driver, device: Device) -> _Engines:
    found = driver.read("nvmlDeviceGetAttributes", device.handle)
    if found is None:
        return None, None, None
    return found.multiprocessorCount, found.sharedDecoderCount, found.sharedJpegCount


def _engines_of_whole(driver: Driver, device: Device) -> _Engines:
    # NVML counts engines only for MIG, but it tells every profile that the card could be divided into, MIG on or off,
    # and the largest profile is the whole card. A card that can't be divided doesn't tell.
    count = getattr(driver.api, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)
    profiles = [
        profile
        for number in range(count)
        if (profile := driver.read("nvmlDeviceGetGpuInstanceProfileInfo", device.handle, number)) is not None
    ]
    if not profiles:
        return None, None, None
    return (
        max(profile.multiprocessorCount for profile in profiles),
        max(profile.decoderCount for profile in profiles),
        max(profile.jpegCount for profile in profiles),
    )


def _derive(gpus: tuple[Gpu, ...], devices: list[Device], environment: Mapping[str, str]) -> Visibility:
    units = [
        Unit(uuid=gpu.uuid, pci=gpu.pci, name=gpu.name, mig=device.mig, readable=gpu.problem is None)
        for gpu, device in zip(gpus, devices, strict=True)
    ]
    return visibility(units, environment)


def _ask_cuda(gpus: tuple[Gpu, ...]) -> Visibility | None:
    """CUDA's own answer, where this process has started it anyway; starting it here would cost GPU memory."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    count = torch.cuda.device_count()
    numbers = {str(torch.cuda.get_device_properties(index).uuid): index for index in range(count)}
    found = [numbers.get((gpu.uuid or "").partition("-")[2]) for gpu in gpus]
    hidden = CudaIndex(reason="hidden from this process")
    return Visibility(
        count=count, indices=tuple(hidden if index is None else CudaIndex(index=index) for index in found)
    )
