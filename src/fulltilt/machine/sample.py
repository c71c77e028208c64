"""One reading of the machine, and its one form on disk.

A figure that could not be taken is absent (`None` here, no key in the JSON), never zero.
Fields that this version doesn't know are kept in `extra` and written back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

_Part = TypeVar("_Part", "GpuSample", "CpuSample")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment."""

    index: int
    """Position in the driver's own order (NVML), which CUDA_VISIBLE_DEVICES doesn't change."""
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
class Sample:
    """One reading of the machine."""

    t: float
    """Seconds since the recording began."""
    gpus: tuple[GpuSample, ...] = ()
    cpu: CpuSample = CpuSample()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The plain dictionary that a recording's line holds."""
        flat: dict[str, Any] = {"t": round(self.t, 3)}
        if self.gpus:
            flat["gpus"] = [_to_json(gpu) for gpu in self.gpus]
        flat["cpu"] = _to_json(self.cpu)
        return {**flat, **self.extra}

    @classmethod
    def from_json(cls, flat: Mapping[str, Any]) -> Self:
        """The inverse; raises TypeError, ValueError or KeyError with the field's name when it doesn't fit."""
        rest = {key: value for key, value in flat.items() if key not in ("t", "gpus", "cpu")}
        gpus = flat.get("gpus", [])
        if not isinstance(gpus, list):
            raise TypeError(f"'gpus' must be a list, found {type(gpus).__name__}")
        return cls(
            t=_number(flat, "t"),
            gpus=tuple(_from_json(GpuSample, gpu, "gpus") for gpu in gpus),
            cpu=_from_json(CpuSample, flat.get("cpu", {}), "cpu"),
            extra=rest,
        )


def _to_json(part: GpuSample | CpuSample) -> dict[str, Any]:
    known = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "extra"}
    return {**{key: _plain(value) for key, value in known.items() if value is not None}, **part.extra}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return round(value, 2) if isinstance(value, float) else value


_TEXT = {"name", "uuid", "lost"}
_LISTS = {"cores", "throttle"}


def _from_json(kind: type[_Part], flat: Any, where: str) -> _Part:
    if not isinstance(flat, Mapping):
        raise TypeError(f"{where!r} must hold objects, found {type(flat).__name__}")
    known = {f.name for f in fields(kind)} - {"extra"}
    values: dict[str, Any] = {}
    for key in known & flat.keys():
        value = flat[key]
        if value is None:
            continue
        if key in _TEXT:
            values[key] = str(value)
        elif key in _LISTS:
            if not isinstance(value, list):
                raise TypeError(f"'{where}.{key}' must be a list, found {type(value).__name__}")
            values[key] = tuple(value)
        elif key == "processes":
            values[key] = dict(value)
        else:
            values[key] = _number(flat, key)
    if kind is GpuSample and "index" not in values:
        raise KeyError(f"'{where}.index'")
    return kind(**values, extra={key: value for key, value in flat.items() if key not in known})


def _number(flat: Mapping[str, Any], key: str) -> Any:
    value = flat[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"'{key}' must be a number, found {value!r}")
    return value
