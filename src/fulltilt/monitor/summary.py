"""From samples to a summary: figures, verdict and flags for each GPU, and the CPU's figures.

`Tally` takes samples one by one and keeps only the columns that the summary needs, so that a monitor may run for weeks;
`summarize` is the same for a recording at hand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fulltilt.machine.sample import GpuSample, ProcessSample, Sample
from fulltilt.measure.statistics import Figures, cycle_seconds, describe
from fulltilt.monitor.verdict import NEXT_STEPS, Flag, Moments, Verdict, judge, raise_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """One GPU over the whole recording. None is what was not measured."""

    index: int
    slice: int | None = None
    name: str | None = None
    uuid: str | None = None
    verdict: Verdict | None = None
    """None when utilisation was never read; `why` then says so."""
    why: str | None = None
    flags: tuple[Flag, ...] = ()
    util: Figures | None = None
    sm: Figures | None = None
    occupancy: Figures | None = None
    tensor: Figures | None = None
    dram: Figures | None = None
    cycle_seconds: float | None = None
    """How long the rise and fall of utilisation takes, where it repeats plainly."""
    mem_peak: int | None = None
    """Bytes."""
    mem_total: int | None = None
    """Bytes."""
    temp_peak: float | None = None
    """Degrees Celsius."""
    power_mean_w: float | None = None
    power_limit_w: float | None = None
    throttle: tuple[str, ...] = ()
    """Every reason seen for which the clocks were held down."""
    lost: str | None = None
    """Why this GPU could not be read to the end."""

    @property
    def label(self) -> str:
        """`0`, or `0:2` for slice 2 of GPU 0."""
        return str(self.index) if self.slice is None else f"{self.index}:{self.slice}"

    @property
    def next_step(self) -> str:
        """The command to run next."""
        return NEXT_STEPS[None if self.verdict is None else self.verdict.name]

    def to_json(self) -> dict[str, Any]:
        series = {"util": self.util, "sm": self.sm, "occupancy": self.occupancy, "tensor": self.tensor}
        flat = {
            "index": self.index,
            "slice": self.slice,
            "name": self.name,
            "uuid": self.uuid,
            "verdict": self.verdict and self.verdict.name,
            "flags": [flag.name for flag in self.flags],
            **{name: figures and figures.to_json() for name, figures in {**series, "dram": self.dram}.items()},
            "cycle_seconds": _rounded(self.cycle_seconds),
            "rule": self.verdict and self.verdict.rule,
            "evidence": self.verdict.evidence if self.verdict else self.why,
            "flag_evidence": {flag.name: flag.evidence for flag in self.flags} or None,
            "next": self.next_step,
            "mem_peak": self.mem_peak,
            "mem_total": self.mem_total,
            "temp_peak": self.temp_peak,
            "power_mean_w": _rounded(self.power_mean_w),
            "power_limit_w": _rounded(self.power_limit_w),
            "throttle": list(self.throttle) or None,
            "lost": self.lost,
        }
        return _present(flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSummary:
    """The host over the whole recording."""

    util: Figures | None = None
    iowait: Figures | None = None
    busiest: Figures | None = None
    """Of the busiest core at each moment."""
    cores: int | None = None
    ram_peak: int | None = None
    """Bytes."""
    ram_total: int | None = None
    """Bytes."""
    disk_read_mean_mb_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        series = {"util": self.util, "iowait": self.iowait, "busiest": self.busiest}
        return _present(
            {
                **{name: figures and figures.to_json() for name, figures in series.items()},
                "cores": self.cores,
                "ram_peak": self.ram_peak,
                "ram_total": self.ram_total,
                "disk_read_mean_mb_s": _rounded(self.disk_read_mean_mb_s),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSummary:
    """The watched process and its descendants over the whole recording."""

    pid: int
    name: str | None = None
    cpu_mean: float | None = None
    """Percent of one core, so 400 is four cores."""
    ram_peak: int | None = None
    """Bytes."""
    gpu_mem_peak: int | None = None
    """Bytes, over all GPUs together."""

    def to_json(self) -> dict[str, Any]:
        flat = {"pid": self.pid, "name": self.name, "cpu_mean": _rounded(self.cpu_mean)}
        return _present({**flat, "ram_peak": self.ram_peak, "gpu_mem_peak": self.gpu_mem_peak})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a recording comes down to."""

    gpus: tuple[GpuSummary, ...]
    cpu: CpuSummary
    process: ProcessSummary | None = None
    duration_seconds: float
    """From the start of the monitor to the last sample."""
    samples: int

    def to_json(self) -> dict[str, Any]:
        flat = {
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "cpu": self.cpu.to_json(),
            "process": self.process and self.process.to_json(),
            "duration_seconds": _rounded(self.duration_seconds),
            "samples": self.samples,
        }
        return _present(flat)


def summarize(samples: Iterable[Sample], *, cycle: bool = True) -> Summary:
    """The summary of a recording; without `cycle` it costs little enough for the live view."""
    tally = Tally()
    for sample in samples:
        tally.add(sample)
    return tally.summary(cycle=cycle)


class Tally:
    """The running state behind a summary: a few numbers per sample."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._util, self._iowait, self._busiest = array("d"), array("d"), array("d")
        self._disk = _Mean()
        self._cores: int | None = None
        self._ram_peak: int | None = None
        self._ram_total: int | None = None
        self._process: _Process | None = None
        self._last = 0.0
        self._count = 0

    def add(self, sample: Sample) -> None:
        """Take one sample in."""
        self._count += 1
        self._last = sample.t
        cpu = sample.cpu
        if cpu.util is not None:
            self._util.append(cpu.util)
        if cpu.iowait is not None:
            self._iowait.append(cpu.iowait)
        if cpu.cores:
            self._busiest.append(max(cpu.cores))
            self._cores = len(cpu.cores)
        self._ram_peak = _higher(self._ram_peak, cpu.ram_used)
        self._ram_total = cpu.ram_total or self._ram_total
        self._disk.add(cpu.disk_read_mb_s)
        for gpu in sample.gpus:
            tally = self._gpus.get(gpu.label)
            if tally is None:
                tally = self._gpus[gpu.label] = _Gpu(gpu)
            tally.add(sample, gpu)
        if sample.process is not None:
            if self._process is None:
                self._process = _Process(sample.process.pid)
            self._process.add(sample.process)

    def summary(self, *, cycle: bool = True) -> Summary:
        """The summary so far."""
        return Summary(
            gpus=tuple(self._gpus[label].summary(cycle=cycle) for label in sorted(self._gpus, key=_place)),
            cpu=CpuSummary(
                util=describe(self._util),
                iowait=describe(self._iowait),
                busiest=describe(self._busiest),
                cores=self._cores,
                ram_peak=self._ram_peak,
                ram_total=self._ram_total,
                disk_read_mean_mb_s=self._disk.value,
            ),
            process=None if self._process is None else self._process.summary(),
            duration_seconds=self._last,
            samples=self._count,
        )


_SERIES = ("util", "sm", "occupancy", "tensor", "dram")


class _Gpu:
    def __init__(self, first: GpuSample) -> None:
        self.index, self.slice = first.index, first.slice
        self.name: str | None = None
        self.uuid: str | None = None
        self.times = array("d")
        self.series = {name: array("d") for name in _SERIES}
        self.moments = Moments()
        self.mem_peak: int | None = None
        self.mem_total: int | None = None
        self.temp_peak: float | None = None
        self.power = _Mean()
        self.power_limit_w: float | None = None
        self.throttle: dict[str, None] = {}  # a set that keeps its order
        self.lost: str | None = None

    def add(self, sample: Sample, gpu: GpuSample) -> None:
        self.name, self.uuid = gpu.name or self.name, gpu.uuid or self.uuid
        for name, column in self.series.items():
            value = getattr(gpu, name)
            if value is not None:
                column.append(value)
        if gpu.util is not None:
            self.times.append(sample.t)
            self.moments.add(gpu.util, sample.cpu)
        self.mem_peak = _higher(self.mem_peak, gpu.mem_used)
        self.mem_total = gpu.mem_total or self.mem_total
        if gpu.temp is not None:
            self.temp_peak = gpu.temp if self.temp_peak is None else max(self.temp_peak, gpu.temp)
        self.power.add(gpu.power_w)
        self.power_limit_w = gpu.power_limit_w or self.power_limit_w
        self.throttle.update(dict.fromkeys(gpu.throttle or ()))
        self.lost = gpu.lost or self.lost

    def summary(self, *, cycle: bool) -> GpuSummary:
        util, sm = describe(self.series["util"]), describe(self.series["sm"])
        full = 100 * self.mem_peak / self.mem_total if self.mem_peak is not None and self.mem_total else None
        thermal = frozenset(reason for reason in self.throttle if "thermal" in reason)
        return GpuSummary(
            index=self.index,
            slice=self.slice,
            name=self.name,
            uuid=self.uuid,
            verdict=None if util is None else judge(util, sm),
            why=None if util is not None else self.lost or "utilisation could not be read on this GPU",
            flags=raise_flags(self.moments, memory_peak_percent=full, temp_peak_c=self.temp_peak, thermal=thermal),
            util=util,
            sm=sm,
            occupancy=describe(self.series["occupancy"]),
            tensor=describe(self.series["tensor"]),
            dram=describe(self.series["dram"]),
            cycle_seconds=cycle_seconds(self.times, self.series["util"]) if cycle else None,
            mem_peak=self.mem_peak,
            mem_total=self.mem_total,
            temp_peak=self.temp_peak,
            power_mean_w=self.power.value,
            power_limit_w=self.power_limit_w,
            throttle=tuple(self.throttle),
            lost=self.lost,
        )


class _Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name: str | None = None
        self.cpu = _Mean()
        self.ram_peak: int | None = None
        self.gpu_mem_peak: int | None = None

    def add(self, process: ProcessSample) -> None:
        self.name = process.name or self.name
        self.cpu.add(process.cpu)
        self.ram_peak = _higher(self.ram_peak, process.ram_used)
        self.gpu_mem_peak = _higher(self.gpu_mem_peak, sum(process.gpu_mem.values()) if process.gpu_mem else None)

    def summary(self) -> ProcessSummary:
        return ProcessSummary(
            pid=self.pid,
            name=self.name,
            cpu_mean=self.cpu.value,
            ram_peak=self.ram_peak,
            gpu_mem_peak=self.gpu_mem_peak,
        )


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self._sum += value
            self._count += 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


def _place(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.split(":"))


def _higher(peak: int | None, value: int | None) -> int | None:
    return peak if value is None else value if peak is None else max(peak, value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _present(flat: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat.items() if value is not None}
