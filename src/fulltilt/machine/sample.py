"""One reading of the machine, and its one form on disk.

A figure that could not be taken is absent (`None` here, no key in the JSON), never zero.
Fields that this version doesn't know are kept in `extra` and written back unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

_Part = TypeVar("_Part", "GpuSample", "CpuSample", "ProcessSample")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    """Position in the driver's own order (NVML), which CUDA_VISIBLE_DEVICES doesn't change."""
    slice: int | None = None
    """Which MIG slice of that GPU this is; absent for a whole GPU."""
    name: str | None = None
    uuid: str | None = None
    util: float | None = None
    """Percent of the last moments in which *some* kernel ran; says nothing about how much of the chip it used."""
    sm: float | None = None
    """Percent of the multiprocessors that had work, from GPM."""
    occupancy: float | None = None
    """Percent of the warp slots in use, from GPM."""
    tensor: float | None = None
    """Percent of the time in which the tensor cores were busy, from GPM."""
    dram: float | None = None
    """Percent of the memory bandwidth in use, from GPM."""
    mem_used: int | None = None
    """Bytes."""
    mem_total: int | None = None
    """Bytes."""
    temp: float | None = None
    """Degrees Celsius."""
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    throttle: tuple[str, ...] | None = None
    """Why the clocks are held down, in words; empty when they are not."""
    pcie_rx_mb_s: float | None = None
    """To the GPU."""
    pcie_tx_mb_s: float | None = None
    """From the GPU."""
    processes: Mapping[str, int] | None = None
    """Process id (as text, it is a JSON key) -> bytes of GPU memory."""
    lost: str | None = None
    """Why this GPU could not be read any more, when it fell off the bus."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """`0`, or `0:2` for slice 2 of GPU 0: how people and `--gpu` name it."""
        return str(self.index) if self.slice is None else f"{self.index}:{self.slice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSample:
    """The host at one moment."""

    util: float | None = None
    """Percent, mean over the usable cores."""
    iowait: float | None = None
    """Percent of the time in which cores were idle and waited for a disk."""
    cores: tuple[float, ...] | None = None
    """Percent, each core."""
    ram_used: int | None = None
    """Bytes."""
    ram_total: int | None = None
    """Bytes; the cgroup's limit where there is one."""
    disk_read_mb_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process and all its descendants at one moment."""

    pid: int
    name: str | None = None
    cpu: float | None = None
    """Percent of one core, so 400 is four cores."""
    ram_used: int | None = None
    """Bytes resident, shared pages counted once per process."""
    gpu_mem: Mapping[str, int] | None = None
    """GPU label -> bytes."""
    count: int | None = None
    """How many processes these are."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of the machine."""

    t: float
    """Seconds since the recording began."""
    gpus: tuple[GpuSample, ...] = ()
    cpu: CpuSample = CpuSample()
    process: ProcessSample | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The plain dictionary that a recording's line holds."""
        flat: dict[str, Any] = {"t": round(self.t, 3)}
        if self.gpus:
            flat["gpus"] = [_to_json(gpu) for gpu in self.gpus]
        flat["cpu"] = _to_json(self.cpu)
        if self.process is not None:
            flat["process"] = _to_json(self.process)
        return {**flat, **self.extra}

    @classmethod
    def from_json(cls, flat: Mapping[str, Any]) -> Self:
        """The inverse; raises TypeError, ValueError or KeyError with the field's name when it doesn't fit."""
        gpus = flat.get("gpus", [])
        if not isinstance(gpus, list):
            raise TypeError(f"'gpus' must be a list, found {type(gpus).__name__}")
        read = tuple(_from_json(GpuSample, gpu, "gpus") for gpu in gpus)
        if len({gpu.label for gpu in read}) < len(read):
            raise ValueError(f"'gpus' must hold each GPU once, found {', '.join(gpu.label for gpu in read)}")
        return cls(
            t=_number(flat, "t", "t"),
            gpus=read,
            cpu=_from_json(CpuSample, flat.get("cpu", {}), "cpu"),
            process=_from_json(ProcessSample, flat["process"], "process") if "process" in flat else None,
            extra={key: value for key, value in flat.items() if key not in ("t", "gpus", "cpu", "process")},
        )


def _to_json(part: GpuSample | CpuSample | ProcessSample) -> dict[str, Any]:
    known = {name: getattr(part, name) for name in _FIELDS[type(part)]}
    return {**{key: _plain(value) for key, value in known.items() if value is not None}, **part.extra}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


_FIELDS = {
    kind: tuple(f.name for f in fields(kind) if f.name != "extra") for kind in (GpuSample, CpuSample, ProcessSample)
}
_NEEDED = {GpuSample: "index", ProcessSample: "pid"}
_WHOLE = {"index", "slice", "pid", "count"}
_TEXT = {"name", "uuid", "lost"}
_TEXTS = {"throttle"}
_NUMBERS = {"cores"}
_BYTES_BY_KEY = {"processes", "gpu_mem"}


def _from_json(kind: type[_Part], flat: Any, where: str) -> _Part:
    if not isinstance(flat, Mapping):
        raise TypeError(f"{where!r} must hold objects, found {type(flat).__name__}")
    known = _FIELDS[kind]
    values = {key: _value(flat, key, f"{where}.{key}") for key in known if flat.get(key) is not None}
    needed = _NEEDED.get(kind)
    if needed is not None and needed not in values:
        raise KeyError(f"'{where}.{needed}' is missing")
    return kind(**values, extra={key: value for key, value in flat.items() if key not in known})


def _value(flat: Mapping[str, Any], key: str, where: str) -> Any:
    value = flat[key]
    if key in _TEXT:
        if not isinstance(value, str):
            raise TypeError(f"'{where}' must be text, found {value!r}")
        return value
    if key in _TEXTS or key in _NUMBERS:
        if not isinstance(value, list):
            raise TypeError(f"'{where}' must be a list, found {type(value).__name__}")
        if key in _NUMBERS:
            return tuple(_number({key: item}, key, where) for item in value)
        return tuple(str(item) for item in value)
    if key in _BYTES_BY_KEY:
        if not isinstance(value, Mapping):
            raise TypeError(f"'{where}' must be an object, found {type(value).__name__}")
        return {str(inner): _number(value, inner, where) for inner in value}
    number = _number(flat, key, where)
    if key in _WHOLE and number != int(number):
        raise ValueError(f"'{where}' must be a whole number, found {number!r}")
    return int(number) if key in _WHOLE else number


def _number(flat: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in flat:
        raise KeyError(f"'{where}' is missing")
    value = flat[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"'{where}' must be a number, found {value!r}")
    return value
