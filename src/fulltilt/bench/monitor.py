"""What the monitor costs, and whether its figures agree with a known load. Behind `fulltilt bench monitor`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import machine_facts, now
from fulltilt.bench.results import as_measured
from fulltilt.bench.running import cpu_seconds, on_a_terminal, running_load
from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import Target, Titled, in_json, target_lines
from fulltilt.errors import FulltiltError, UnavailableError
from fulltilt.machine.sampler import Sampler

TARGETS = {1.0: 0.5, 0.2: 3.0}
"""Interval in seconds -> at most this share of one core, in percent."""
BUSY_SM_PERCENT = 85.0
"""A loop of matrix products must read at least so much."""
IDLE_SM_PERCENT = 1.0
"""An idle card may read so much."""
_STARTING_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A real `fulltilt monitor --record` at one interval, measured from outside once it has started."""

    interval_seconds: float
    live_view: bool
    core_percent: float
    """CPU time over wall time."""
    cpu_ms_per_sample: float
    start_cpu_seconds: float
    """What starting took, imports included; not in the percentage."""
    measured_seconds: float

    @property
    def target(self) -> Target:
        wanted = TARGETS[self.interval_seconds]
        return Target(figure="core_percent", wanted=wanted, found=self.core_percent, at_most=True, unit=" %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The mean of some GPU's figures while a load ran."""

    load: str
    util: float | None
    sm: float | None
    occupancy: float | None
    tensor: float | None
    dram: float | None
    power_w: float | None
    samples: int

    @property
    def target(self) -> Target:
        idle = self.load == "idle"
        wanted = IDLE_SM_PERCENT if idle else BUSY_SM_PERCENT
        return Target(figure="sm", what="SM", wanted=wanted, found=self.sm, at_most=idle, unit=" %")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorBench:
    """Everything that was measured, and on what."""

    machine: dict[str, Any]
    date: str
    costs: tuple[Cost, ...]
    readings: tuple[Reading, ...]
    """Of GPU 0; none when `problem` says why."""
    problem: str | None = None

    @property
    def targets(self) -> list[Titled]:
        costs = [(f"{cost.interval_seconds:g} s{', live view' * cost.live_view}", cost.target) for cost in self.costs]
        return [*costs, *((reading.load, reading.target) for reading in self.readings)]

    def to_json(self) -> dict[str, Any]:
        flat = asdict(self)
        for name in ("costs", "readings"):
            flat[name] = [{**asdict(one), "targets": in_json([one.target])} for one in getattr(self, name)]
        found: dict[str, Any] = as_measured(flat)
        return found


def measure(*, seconds: float, say: Callable[[str], None]) -> MonitorBench:
    """Measure all of it; `seconds` is how long each of the six parts takes, `say` hears what comes next."""
    costs = []
    for interval in TARGETS:
        for live in (False, True):
            say(f"cost at {interval:g} s, live view {'on' if live else 'off'}: {seconds:g} s")
            costs.append(measure_cost(interval=interval, live=live, seconds=seconds))
    readings: list[Reading] = []
    problem = None
    try:
        for load in ("idle", "fed"):
            say(f"figures under a known load, {load}: {seconds:g} s")
            readings.append(measure_reading(load, seconds=seconds))
    except UnavailableError as error:
        problem = str(error)
    return MonitorBench(
        machine=machine_facts({}), date=now(), costs=tuple(costs), readings=tuple(readings), problem=problem
    )


def measure_cost(*, interval: float, live: bool, seconds: float) -> Cost:
    """Start a monitor, let it settle, and compare its CPU time at two moments."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "recording.jsonl"
        command = [sys.executable, "-m", "fulltilt", "monitor", "--interval", str(interval), "--record", str(file)]
        if live:
            process = stack.enter_context(on_a_terminal(command, columns=120, rows=40))
        else:
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            stack.callback(process.terminate)
        time.sleep(_STARTING_SECONDS)
        before, began, lines = cpu_seconds(process.pid), time.monotonic(), _lines(file)
        time.sleep(seconds)
        after, ended, taken = cpu_seconds(process.pid), time.monotonic(), _lines(file) - lines
    if not taken:  # a monitor that ended or never began costs nothing, which is no figure
        raise FulltiltError(f"the monitor took no sample in {seconds:g} s; run it by itself: {' '.join(command)}")
    return Cost(
        interval_seconds=interval,
        live_view=live,
        core_percent=100 * (after - before) / (ended - began),
        cpu_ms_per_sample=1000 * (after - before) / taken,
        start_cpu_seconds=before,
        measured_seconds=ended - began,
    )


def measure_reading(load: str, *, seconds: float, device: str = "cuda") -> Reading:
    """The first GPU's figures while the load runs."""
    with running_load(load, device=device), Sampler() as sampler:
        if not sampler.labels:
            raise UnavailableError(sampler.problem or "no GPU can be read")
        time.sleep(2.0)  # utilisation is averaged over up to a second: let the start pass out of it
        sampler.start()
        taken = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.2)
            taken.append(sampler.read().gpus[0])
    means = {
        name: _mean([getattr(gpu, name) for gpu in taken]) for name in Reading.__slots__ if hasattr(taken[0], name)
    }
    return Reading(load=load, samples=len(taken), **means)


def _mean(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def show(found: MonitorBench) -> None:
    console = console_or(None)
    costs = figures_table("Cost", "live view", "of one core", "CPU per sample", "to start", name="interval")
    for cost in found.costs:
        costs.add_row(
            f"{cost.interval_seconds:g} s",
            "on" if cost.live_view else "off",
            f"{cost.core_percent:.2f} %",
            f"{cost.cpu_ms_per_sample:.2f} ms",
            f"{cost.start_cpu_seconds:.2f} s",
        )
    console.print(costs)
    if found.readings:
        figures = figures_table("Known loads, GPU 0", "util", "SM", "occupancy", "tensor", "DRAM", "power", name="load")
        for reading in found.readings:
            percents = (reading.util, reading.sm, reading.occupancy, reading.tensor, reading.dram)
            figures.add_row(
                reading.load,
                *("–" if value is None else f"{value:.1f} %" for value in percents),
                "–" if reading.power_w is None else f"{reading.power_w:.0f} W",
            )
        console.print(figures)
    print_lines(console, target_lines(found.targets))
    if found.problem is not None:
        print_lines(console, [found.problem])
