"""From figures to a verdict and flags. Pure: it sees measurements, never a GPU.

Every threshold stands in `THRESHOLDS`, with where it comes from. The verdict is the first of `VERDICTS` that fits,
`healthy` when none does; each flag is raised on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from fulltilt.machine.sample import CpuSample
from fulltilt.measure.statistics import Figures

VerdictName = Literal["idle", "starved", "bursty", "underused", "small-kernels", "healthy"]
FlagName = Literal["memory-full", "hot", "cpu-bound", "io-bound"]


class Threshold(NamedTuple):
    """A threshold, what is compared with it, and why it lies there."""

    value: float
    unit: str
    figure: str
    source: str


_SAGEMAKER_CPU = "SageMaker Debugger, CPUBottleneck"
_ONE_PROCESS = "ours: a GPU fed by a single process reads 15–40 %, seldom below 10 %"

THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "idle": Threshold(5, "%", "mean utilisation", "ours: a desktop stays below it, the slowest training does not"),
        "starved": Threshold(50, "%", "mean utilisation", "guides 003 and 004: 20–50 % before the fix"),
        "bursty": Threshold(10, "points", "standard deviation", "guide 001, checklist: fluctuation below 10 %"),
        "underused": Threshold(85, "%", "mean utilisation", "guides 001 and 002: utilisation of 85 % or more"),
        "small-kernels": Threshold(50, "%", "mean SM activity", "NVIDIA DCGM: below 0.5 use is likely ineffective"),
        "memory-full": Threshold(90, "%", "peak GPU memory", "Kineto's recommendation"),
        "hot": Threshold(80, "°C", "peak temperature", "guide 002: below 80 °C"),
        "quiet-gpu": Threshold(10, "%", "utilisation at a moment", _SAGEMAKER_CPU),
        "cpu-bound": Threshold(90, "%", "CPU while the GPU is quiet", _SAGEMAKER_CPU),
        "io-bound": Threshold(50, "%", "iowait while the GPU is quiet", "SageMaker Debugger, IOBottleneck"),
        "hungry-gpu": Threshold(50, "%", "utilisation at a moment", _ONE_PROCESS),
        "one-core": Threshold(90, "%", "the busiest core while the GPU is hungry", _ONE_PROCESS),
        "other-cores": Threshold(20, "%", "mean of the other cores while the GPU is hungry", _ONE_PROCESS),
        "of-moments": Threshold(50, "%", "share of such moments", _SAGEMAKER_CPU),
        "of-time": Threshold(10, "%", "such moments' share of the time", "ours: a pause is not a bottleneck"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The word, the rule that gave it and the figures behind it."""

    name: VerdictName
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Something else worth knowing, with the figures behind it."""

    name: FlagName
    evidence: str


class _Rule(NamedTuple):
    name: VerdictName
    side: Literal["below", "above"]
    figure: Callable[[Figures, Figures | None], float | None]

    @property
    def text(self) -> str:
        return rule_text(self.name, "<" if self.side == "below" else ">")


def rule_text(threshold: str, sign: str) -> str:
    """A comparison with one of `THRESHOLDS`, as people read it."""
    value, unit, figure, _ = THRESHOLDS[threshold]
    return f"{figure} {sign} {value:g} {unit}"


# In this order, the first that fits.
VERDICTS = (
    _Rule("idle", "below", lambda util, _: util.mean),
    _Rule("starved", "below", lambda util, _: util.mean),
    _Rule("bursty", "above", lambda util, _: util.std),
    _Rule("underused", "below", lambda util, _: util.mean),
    _Rule("small-kernels", "below", lambda _, sm: None if sm is None else sm.mean),
)


def judge(util: Figures, sm: Figures | None) -> Verdict:
    """The verdict on a GPU from the figures of its utilisation and, where the card has it, its SM activity."""
    for rule in VERDICTS:
        threshold, value = THRESHOLDS[rule.name], rule.figure(util, sm)
        if value is None or not (value < threshold.value if rule.side == "below" else value > threshold.value):
            continue
        evidence = f"{threshold.figure} {_apart(value, threshold.value)} {threshold.unit}"
        if rule.name in ("bursty", "small-kernels"):
            evidence += f", mean utilisation {util.mean:.1f} %"
        return Verdict(name=rule.name, rule=rule.text, evidence=evidence)
    activity = "SM activity not measured" if sm is None else f"mean SM activity {sm.mean:.1f} %"
    return Verdict(
        name="healthy",
        rule="no other rule fits",
        evidence=f"mean utilisation {util.mean:.1f} %, standard deviation {util.std:.1f} points, {activity}",
    )


@dataclass(slots=True, kw_only=True)
class Moments:
    """Running counts of what the joint flags ask about: this GPU and the CPU at the same moment."""

    count: int = 0
    quiet: int = 0
    quiet_cpu_busy: int = 0
    quiet_disk_busy: int = 0
    hungry: int = 0
    hungry_one_core: int = 0

    def add(self, util: float, cpu: CpuSample) -> None:
        """Count one moment."""
        self.count += 1
        if util < THRESHOLDS["quiet-gpu"].value:
            self.quiet += 1
            self.quiet_cpu_busy += cpu.util is not None and cpu.util > THRESHOLDS["cpu-bound"].value
            self.quiet_disk_busy += cpu.iowait is not None and cpu.iowait > THRESHOLDS["io-bound"].value
        if util < THRESHOLDS["hungry-gpu"].value:
            self.hungry += 1
            self.hungry_one_core += cpu.cores is not None and one_core_alone(cpu.cores)


def one_core_alone(cores: tuple[float, ...]) -> bool:
    """Whether one core is busy and the rest idle, as when a single process loads the data."""
    if len(cores) < 2:
        return False
    busiest = max(cores)
    others = (sum(cores) - busiest) / (len(cores) - 1)
    return busiest >= THRESHOLDS["one-core"].value and others < THRESHOLDS["other-cores"].value


def raise_flags(
    moments: Moments,
    *,
    memory_peak_percent: float | None = None,
    temp_peak_c: float | None = None,
    thermal: frozenset[str] = frozenset(),
) -> tuple[Flag, ...]:
    """Every flag that is raised, in the order of `THRESHOLDS`; `thermal` holds the throttle reasons that mean heat."""
    raised = []
    full, hot = THRESHOLDS["memory-full"], THRESHOLDS["hot"]
    if memory_peak_percent is not None and memory_peak_percent > full.value:
        evidence = f"{full.figure} {_apart(memory_peak_percent, full.value)} % > {full.value:g} %"
        raised.append(Flag(name="memory-full", evidence=evidence))
    heat = []
    if temp_peak_c is not None and temp_peak_c >= hot.value:
        heat.append(f"{hot.figure} {temp_peak_c:.0f} °C ≥ {hot.value:g} °C")
    if thermal:
        heat.append(f"clocks held down by heat ({', '.join(sorted(thermal))})")
    if heat:
        raised.append(Flag(name="hot", evidence="; ".join(heat)))
    if _often(moments.quiet_cpu_busy, moments.quiet, moments.count):
        part = _part(moments.quiet_cpu_busy, moments.quiet, "quiet-gpu")
        raised.append(Flag(name="cpu-bound", evidence=f"CPU > {THRESHOLDS['cpu-bound'].value:g} % in {part}"))
    elif _often(moments.hungry_one_core, moments.hungry, moments.count):
        part = _part(moments.hungry_one_core, moments.hungry, "hungry-gpu")
        evidence = f"one core busy and the rest idle in {part}: loading runs in a single process"
        raised.append(Flag(name="cpu-bound", evidence=evidence))
    if _often(moments.quiet_disk_busy, moments.quiet, moments.count):
        part = _part(moments.quiet_disk_busy, moments.quiet, "quiet-gpu")
        raised.append(Flag(name="io-bound", evidence=f"iowait > {THRESHOLDS['io-bound'].value:g} % in {part}"))
    return tuple(raised)


def _often(hits: int, moments: int, count: int) -> bool:
    enough = moments > 0 and 100 * moments >= THRESHOLDS["of-time"].value * count
    return enough and 100 * hits > THRESHOLDS["of-moments"].value * moments


def _part(hits: int, moments: int, threshold: str) -> str:
    return f"{hits} of the {moments} moments with the GPU below {THRESHOLDS[threshold].value:g} %"


def _apart(value: float, threshold: float) -> str:
    """The value with as many decimals as it takes not to read like the threshold that it missed."""
    for decimals in (1, 2, 3):
        if float(f"{value:.{decimals}f}") != threshold:
            return f"{value:.{decimals}f}"
    return repr(value)


# What to run next, by verdict; None stands for a GPU whose utilisation could not be read.
NEXT_STEPS: Mapping[VerdictName | None, str] = MappingProxyType(
    {
        "idle": "fulltilt env  (is the training on this GPU? it shows which one CUDA calls 0)",
        "starved": "fulltilt diagnose train.py  (which line of the script this GPU waits for)",
        "bursty": "fulltilt diagnose train.py  (what the script does while this GPU waits)",
        "underused": "fulltilt diagnose train.py  (which line of the script this GPU waits for)",
        "small-kernels": "fulltilt diagnose train.py  (whether a larger batch, fewer launches or compiling would pay)",
        "healthy": "none: this GPU is well fed",
        None: "fulltilt env  (what this GPU and its driver can report)",
    }
)
