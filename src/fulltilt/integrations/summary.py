"""What a watched loop comes down to: figures of all its steps, as data and as a line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any

from fulltilt.measure.observation import Observation, Phase
from fulltilt.measure.timeline import PHASES, Record
from fulltilt.monitor.summary import GpuSummary, Summary
from fulltilt.words import many

WAITS: tuple[Phase, ...] = ("data wait", "epoch start")
LEAST_SHOWN = 0.005
"""A phase with less than this share is left out of the line."""


class Totals:
    """Steps added up as they go by: a run of millions takes no more memory than one of a hundred."""

    def __init__(self) -> None:
        self.steps = 0
        self.first_seconds: float | None = None
        """The first step, and all that came before it: compilation, imports, workers that start."""
        self.samples: Counter[int | None] = Counter()
        """How many steps had so many."""
        self.spent_ns = [0] * len(PHASES)
        self.step_ns = 0
        """Of `spent_ns`, within the steps."""
        self.gpu_seconds = 0.0
        self.starved_seconds = 0.0

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self.steps += 1
            if self.first_seconds is None:
                self.first_seconds = (record.step_ns + sum(record.outside_ns)) / 1e9
                continue
            self.step_ns += record.step_ns
            self._spend(record.phases_ns)
            self._spend(record.outside_ns)
            self.samples[record.samples] += 1
            if record.gpu_seconds is not None and record.starved_seconds is not None:
                self.gpu_seconds += record.gpu_seconds
                self.starved_seconds += record.starved_seconds

    def end(self, rest: Record) -> None:
        """What stood behind the last step: an evaluation, a checkpoint; whatever else a program did is its own."""
        if self.steps:
            self._spend(rest.outside_ns)

    @property
    def usual_samples(self) -> int | None:
        """Of a step: the median. A loader that looks ahead gives two batches at an epoch's start, none at its end."""
        if None in self.samples or not self.samples:
            return None
        return median_low(self.samples.elements())  # type: ignore[type-var]

    def _spend(self, spent_ns: list[int]) -> None:
        for phase, one in enumerate(spent_ns):
            self.spent_ns[phase] += one


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSummary:
    """A loop from its second step to its end. None is what was not measured."""

    steps: int
    """All of them; the first is in no other figure but `first_seconds`."""
    seconds: float
    """Of the steps and of what stood between them: evaluation, checkpoints, starts of epochs."""
    first_seconds: float | None = None
    """Of the first step and what came before it: compilation, imports, workers that start."""
    samples_per_second: float | None = None
    """Evaluation and checkpoints left out, waits for batches included; by the samples of the usual step."""
    phases: dict[Phase, float] = field(default_factory=dict)
    """Shares of `seconds` on the host's clock; they add up to 1."""
    starved: float | None = None
    """Share of the GPU's own time in which it had nothing to do because a batch was not there."""
    machine: Summary
    """The monitor's: utilisation and verdict of each GPU, the CPU, this process."""
    gpu: GpuSummary | None = None
    """The one that was trained on."""
    problem: str | None = None
    """Why no GPU was read, or why nothing was watched."""
    metrics: tuple[dict[str, float], ...] = ()
    """Of each epoch, or of each time that they were asked for."""
    metrics_problem: str | None = None
    """Why the last ones are missing."""
    observation: Observation | None = None
    """The latest steps one by one, the loaders, the model: what `fulltilt.diagnose` reads."""

    @property
    def data_wait(self) -> float | None:
        """Share of the time in which the loop waited for batches, starts of epochs included."""
        return sum(self.phases.get(phase, 0.0) for phase in WAITS) if self.phases else None

    def line(self) -> str:
        """All of it in a line."""
        if not self.phases:
            return f"fulltilt: {many(self.steps, 'step')}: too few to say anything about"
        parts = [f"{self.steps} steps, {_rate(self)}", _gpu(self), f"data wait {_percent(self.data_wait or 0.0)}"]
        if self.starved is not None:
            parts.append(f"GPU starved {_percent(self.starved)}")
        shown = [(phase, share) for phase, share in self.phases.items() if phase not in WAITS and share >= LEAST_SHOWN]
        shown.sort(key=lambda one: -one[1])
        parts.append(", ".join(f"{phase} {_percent(share)}" for phase, share in shown))
        cpu = self.machine.cpu.util
        if cpu is not None:
            parts.append(f"CPU {cpu.mean:.0f} %")
        if self.metrics_problem is not None:
            parts.append(f"metrics failed: {self.metrics_problem.splitlines()[0]}")
        elif self.metrics:
            parts.append(", ".join(f"{name} {value:.4g}" for name, value in self.metrics[-1].items()))
        return "fulltilt: " + "; ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a file: what was not measured is absent."""
        flat = {
            "steps": self.steps,
            "seconds": round(self.seconds, 6),
            "first_seconds": self.first_seconds,
            "samples_per_second": self.samples_per_second,
            "phases": dict(self.phases),
            "data_wait": self.data_wait,
            "starved": self.starved,
            "gpu": None if self.gpu is None else self.gpu.to_json(),
            "problem": self.problem,
            "machine": self.machine.to_json(),
            "metrics": list(self.metrics) or None,
            "metrics_problem": self.metrics_problem,
            "observation": None if self.observation is None else asdict(self.observation),
        }
        return {key: value for key, value in flat.items() if value is not None}


def summarised(
    totals: Totals,
    machine: Summary,
    *,
    uuid: str | None = None,
    problem: str | None = None,
    metrics: Iterable[dict[str, float]] = (),
    metrics_problem: str | None = None,
    observation: Observation | None = None,
) -> LoopSummary:
    """`uuid` is the GPU's that was trained on, where there is one."""
    spent_ns = sum(totals.spent_ns)
    trained_ns = totals.step_ns + totals.spent_ns[PHASES.index("epoch start")]
    usual = totals.usual_samples
    return LoopSummary(
        steps=totals.steps,
        seconds=spent_ns / 1e9,
        first_seconds=totals.first_seconds,
        samples_per_second=(totals.steps - 1) * usual / trained_ns * 1e9 if usual and trained_ns else None,
        phases={PHASES[phase]: one / spent_ns for phase, one in enumerate(totals.spent_ns) if one},
        starved=totals.starved_seconds / totals.gpu_seconds if totals.gpu_seconds else None,
        machine=machine,
        gpu=_trained_on(machine, uuid),
        problem=problem,
        metrics=tuple(metrics),
        metrics_problem=metrics_problem,
        observation=observation,
    )


def _trained_on(machine: Summary, uuid: str | None) -> GpuSummary | None:
    """By its UUID; a slice of a GPU goes by another, and the busiest is then the one."""
    if uuid is None:
        return None
    named = [gpu for gpu in machine.gpus if gpu.uuid == uuid]
    return max(named or machine.gpus, key=lambda gpu: gpu.util.mean if gpu.util else 0.0, default=None)


def _rate(summary: LoopSummary) -> str:
    if summary.samples_per_second is None:
        return f"{(summary.steps - 1) / summary.seconds:.3g} steps/s"
    rate = summary.samples_per_second
    return f"{rate:,.0f} samples/s" if rate >= 1000 else f"{rate:.4g} samples/s"


def _gpu(summary: LoopSummary) -> str:
    gpu = summary.gpu
    if gpu is None:
        return "no GPU"
    if gpu.util is None:
        return f"GPU {gpu.label}: {gpu.why}"
    verdict = "" if gpu.verdict is None else f" ({gpu.verdict.name})"
    return f"GPU {gpu.label} {gpu.util.mean:.1f} % ± {gpu.util.std:.1f}{verdict}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
