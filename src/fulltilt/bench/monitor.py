"""What the monitor costs, and whether its figures agree with a known load. Behind `fulltilt bench monitor`."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fulltilt import __version__
from fulltilt.bench.running import cpu_seconds, on_a_terminal, running_load
from fulltilt.errors import FulltiltError, UnavailableError
from fulltilt.machine.cores import read_cores
from fulltilt.machine.sampler import Sampler

TARGETS = {1.0: 0.5, 0.2: 3.0}
"""Interval in seconds -> at most this share of one core, in percent."""
BUSY_SM_PERCENT = 85.0
"""A loop of matrix products must read more."""
IDLE_SM_PERCENT = 1.0
"""An idle card must read less."""
_STARTING_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A real `fulltilt monitor --record` at one interval, measured from outside once it has started."""

    interval_seconds: float
    live_view: bool
    core_percent: float
    """CPU time over wall time."""
    target_percent: float
    cpu_ms_per_sample: float
    start_cpu_seconds: float
    """What starting took, imports included; not in the percentage."""
    measured_seconds: float

    @property
    def met(self) -> bool:
        return self.core_percent < self.target_percent


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorBench:
    """Everything that was measured, and on what."""

    machine: dict[str, Any]
    costs: tuple[Cost, ...]
    readings: tuple[Reading, ...]
    """Of GPU 0; none when `problem` says why."""
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        flat = asdict(self)
        flat["costs"] = [{**asdict(cost), "met": cost.met} for cost in self.costs]
        return {key: value for key, value in _rounded(flat).items() if value is not None}


def measure(*, seconds: float, say: Callable[[str], None]) -> MonitorBench:
    """Measure all of it; `seconds` is how long each of the six parts takes, `say` hears what comes next."""
    costs = []
    for interval, target in TARGETS.items():
        for live in (False, True):
            say(f"cost at {interval:g} s, live view {'on' if live else 'off'}: {seconds:g} s")
            costs.append(measure_cost(interval=interval, live=live, target=target, seconds=seconds))
    readings: list[Reading] = []
    problem = None
    try:
        for load in ("idle", "fed"):
            say(f"figures under a known load, {load}: {seconds:g} s")
            readings.append(measure_reading(load, seconds=seconds))
    except UnavailableError as error:
        problem = str(error)
    return MonitorBench(machine=_machine(), costs=tuple(costs), readings=tuple(readings), problem=problem)


def measure_cost(*, interval: float, live: bool, target: float, seconds: float) -> Cost:
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
        target_percent=target,
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


def _machine() -> dict[str, Any]:
    with Sampler() as sampler:
        sampler.start()
        gpus = [gpu.name for gpu in sampler.read().gpus]
    return {
        "fulltilt": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": read_cores().usable,
        "gpus": gpus,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value
