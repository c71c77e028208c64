"""What was seen of a training script while it ran: the timeline and what stands beside it, as plain data.

Whoever watches the script writes an Observation; findings, plans and reports are made of it alone. Times are seconds.
Unmeasured is None, never zero.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cache
from math import fsum
from pathlib import Path
from typing import Any, Literal

Phase = Literal[
    "data wait", "copy", "forward", "backward", "optimizer", "sync", "eval", "checkpoint", "logging", "epoch start",
    "other",
]  # fmt: skip
"""`epoch start` is the wait for an epoch's first batch: workers start, or the loader begins anew."""

Mode = Literal["as is", "replay", "loader"]
"""The script as it is; with its first batches handed out again and again, on the device; its loader alone."""

Ended = Literal["stable", "steps", "time", "script", "failed", "killed"]
"""Why watching ended: figures were stable, the steps or the time were up, or the script itself ended."""

LEAST_CLOCKED = 0.5
"""Share of the steps, from the first on, that have a time on the GPU's clock where it counts for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's own code."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        """`train.py:31`."""
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step, from the end of the one before to the end of its optimizer's step."""

    number: int
    started: float
    """Since watching began."""
    seconds: float
    phases: dict[Phase, float]
    """On the host's clock, each moment in one phase only: they add up to `seconds`."""
    gpu_seconds: float | None = None
    """The GPU's clock over the same step, from event to event; short steps share two events, and have equal parts."""
    starved_seconds: float | None = None
    """How long the GPU had nothing to do because a batch was not there: an event pair around the loader's `next`, in
    as many of the steps as keeps it cheap."""
    samples: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A place where the host waits for the GPU."""

    place: Place | None
    kind: str
    """What was called: item, cpu, print, synchronize, …"""
    count: int
    seconds: float
    implicit: bool = False
    """Heard in two steps only and reckoned for all: its time lies in other phases than `sync`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copies from the host to the device, by place."""

    place: Place | None
    count: int
    seconds: float
    """The host's time in them."""
    bytes: int
    pinned: bool
    non_blocking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a loader's work, timed in the workers."""

    name: str
    """`read`, `decode`, a transform's name, `collate`, `hand over`, `pin`; `item` for what lies in none of them."""
    seconds: float
    """Of one core, per sample."""
    cpu_seconds: float | None = None
    """Of it, on a core; the rest was waited, for a disk say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A DataLoader of the script."""

    role: Literal["train", "eval", "unknown"]
    """By what follows its batches: a backward, or none."""
    place: Place | None
    """Where it was made."""
    dataset: str
    samples: int | None
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    batch_bytes: int | None
    stages: tuple[Stage, ...] = ()
    made: int = 1
    """How many were made there, one after the other: a loader that is made anew for each epoch counts as one."""
    starts: int = 0
    """How often its workers were started."""
    start_seconds: float | None = None
    """The median wait for an epoch's first batch; not that for workers' start, where they live on."""
    samples_per_second: float | None = None
    """The loader alone: how many it gives when nobody trains."""
    iterable: bool = False
    """Over an IterableDataset, whose samples depend on the number of workers."""
    changes: bool = False
    """The script changes its data set or collate_fn between epochs: workers that live on would not know."""
    opened: str | None = None
    """A file that the data set holds open (`Records.file`) and one process reads: several would share its place."""
    generator: str | None = None
    """One of random numbers that the data set has (`Photos.rng`), where it has no workers: each would have a copy."""
    draws: bool | None = None
    """Making its samples moves a random generator of the process that makes them (torch's, numpy's, Python's): with
    another number of workers they are others. None where it could not be seen."""
    remembers: str | None = None
    """What its data set keeps of what it makes (`Photos.cache`): of workers each has one of its own."""
    elsewhere: bool = False
    """Another thread than the one that trains asks it for batches: what is waited for them is in no phase."""
    in_memory: bool = False
    """Its samples are tensors that lie in memory already (a TensorDataset)."""
    transforms: tuple[str, ...] = ()
    """Names of the transforms that were recognised, in order."""
    movable: tuple[str, ...] = ()
    """Of them, those at the end that GPUAugmentation would do with the figures that they have."""
    augmentation: str | None = None
    """The same as an expression: `GPUAugmentation(size=(224, 224), …)`."""
    tail: tuple[str, ...] = ()
    """Of the transforms, those at the end that make floats of bytes and nothing else: ToTensor, Normalize."""

    @property
    def keeps_workers(self) -> bool:
        """Another number of them, or longer lives, would give other samples, unless the script sees to it."""
        if self.iterable or self.opened is not None or self.generator is not None:
            return True
        return self.remembers is not None and (not self.num_workers or self.persistent_workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the script trains, and how."""

    model: str
    parameters: int
    dtype: str
    device: str
    images: bool
    """It has 2-d convolutions, and its input is four-dimensional."""
    channels_last: bool
    compiled: bool
    autocast: str | None
    """The type that autocast was on with in the outermost forward."""
    tf32: bool
    cudnn_benchmark: bool
    optimizer: str
    fused: bool
    foreach: bool
    accumulation: int = 1
    """Backwards for one step of the optimizer."""
    launches: int | None = None
    """Kernels launched by a step, where they could be counted."""
    kernel_seconds: float | None = None
    """Of the GPU, in a step's kernels alone, where they could be counted."""
    fusable_seconds: float | None = None
    """Of these, in kernels that a compiler would put together: element by element, sums, norms."""
    weights: int = 0
    """Tensors that are trained."""
    threads: int = 1
    """torch.get_num_threads() in the training process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else went on on the machine."""

    cores: int
    cpu_share: float | None = None
    """Busy cores of all processes, of those usable."""
    others_cores: float | None = None
    """How many cores others kept busy, on average."""
    memory_bytes: tuple[int, ...] = ()
    """The script's processes together, over time."""
    gpu: str | None = None
    gpu_share: float | None = None
    """The driver's utilisation, from 0 to 1."""
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    other_processes: int = 0
    """Others' on the same GPU."""
    throttled: str | None = None
    """Why the GPU's clocks were held down: thermal, power, …"""
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that was seen of one process in one run."""

    command: tuple[str, ...]
    mode: Mode = "as is"
    applied: dict[str, Any] = field(default_factory=dict)
    """Settings that were put upon the script from outside."""
    ended: Ended
    exit_status: int | None = None
    raised: bool = False
    """An exception that nobody caught has ended it: its exit status is no choice of the script's."""
    seconds: float
    """From the script's beginning to the end of watching."""
    steps: tuple[Step, ...] = ()
    """After those that warm up."""
    warm_up_seconds: float | None = None
    again: tuple[Step, ...] = ()
    """Behind those, with batches that were on the device already."""
    first_losses: tuple[float, ...] = ()
    """Of all steps from the very first on, those that warm up too: what is compared between two runs."""
    first_inputs: tuple[tuple[float, float], ...] = ()
    """Mean and standard deviation of the model's first inputs; only of runs that are compared."""
    draws: bool = False
    """The model drew random numbers, for dropout or else; only of runs in which dropout was tied to the seed."""
    outside: dict[Phase, float] = field(default_factory=dict)
    """Between the steps, over all the time watched: evaluation, checkpoints, starts of epochs."""
    attributed: float | None = None
    """Share of the watched wall time that lies in a phase other than `other`."""
    loaders: tuple[Loader, ...] = ()
    syncs: tuple[Sync, ...] = ()
    copies: tuple[Copy, ...] = ()
    training: Training | None = None
    backwards: int = 0
    """Gradients that were asked for, by `backward` or `torch.autograd.grad`, whether or not a step followed."""
    surroundings: Surroundings | None = None
    modules: tuple[str, ...] = ()
    """Files of the user's own that it had imported: what else it is made of, besides the script."""
    rank: int = 0
    world: int = 1
    notes: tuple[str, ...] = ()
    """What could not be seen, and why; what was left alone on disk."""

    @property
    def step_seconds(self) -> float:
        """Of all watched steps together. The host may run ahead of its GPU, by a thousand kernels or as many graphs:
        what it has launched is not done yet, and the GPU's own clock tells, where it was read up to the last ones."""
        host = fsum(step.seconds for step in self.steps)
        last = max((place for place, step in enumerate(self.steps) if step.gpu_seconds is not None), default=-1)
        clocked = self.steps[: last + 1]
        device = [step.gpu_seconds for step in clocked if step.gpu_seconds is not None]
        if not clocked or len(device) < len(clocked) or len(clocked) < LEAST_CLOCKED * len(self.steps):
            return host
        behind = fsum(device) - fsum(step.seconds for step in clocked)
        return host + max(behind, 0.0) * len(self.steps) / len(clocked)

    @property
    def train_loader(self) -> Loader | None:
        """The loader that is trained from; of several the one with most samples."""
        loaders = [loader for loader in self.loaders if loader.role != "eval"]
        named = [loader for loader in loaders if loader.role == "train"] or loaders
        return max(named, key=lambda loader: loader.samples or 0, default=None)

    @property
    def can_replay(self) -> bool:
        """A loader gives the thread that trains its batches: it can be given them again."""
        return any(loader.role != "eval" and not loader.elsewhere for loader in self.loaders)

    @property
    def replayed(self) -> Observation | None:
        """As a run of its own, in which batches were given again; None where they were not, in this one."""
        return dataclasses.replace(self, mode="replay", steps=self.again, again=()) if self.again else None

    @property
    def alone(self) -> Observation | None:
        """Itself, where the training loader was measured alone, too."""
        return self if any(loader.samples_per_second is not None for loader in self.loaders) else None

    @property
    def behind_seconds(self) -> float:
        """From the last step that counts to the end of watching: kernels are counted there, and limits measured."""
        last = self.steps[-1] if self.steps else None
        return 0.0 if last is None else max(0.0, self.seconds - last.started - last.seconds)

    @property
    def samples_per_second(self) -> float | None:
        """Over the watched steps, evaluation and checkpoints between them left out."""
        samples = [step.samples for step in self.steps if step.samples is not None]
        seconds = self.step_seconds
        return sum(samples) / seconds if len(samples) == len(self.steps) and seconds > 0 else None

    @property
    def steps_per_second(self) -> float | None:
        seconds = self.step_seconds
        return len(self.steps) / seconds if seconds > 0 else None


def to_json(observation: Observation) -> dict[str, Any]:
    return dataclasses.asdict(observation)


def from_json(data: dict[str, Any]) -> Observation:
    found: Observation = _adapter().validate_python(data)
    return found


def write(observation: Observation, path: Path) -> None:
    """Aside, then renamed: a reader sees all of it or nothing."""
    aside = path.with_name(f"{path.name}.part")
    aside.write_text(json.dumps(to_json(observation)))
    aside.replace(path)


def read(path: Path) -> Observation:
    return from_json(json.loads(path.read_text()))


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Observation)
