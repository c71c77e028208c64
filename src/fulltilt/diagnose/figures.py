"""What an observation comes down to per step, and the model that foretells a gain.

The model, in seconds per step:

    step   = wait + start + own               start: the waits for the epochs' first batches; own: all other phases
    wait   = max(0, loader − own)             with workers, which load while the step works
           = loader                           without: nothing overlaps
    whole  = step + outside / steps           evaluation, checkpoints, starts of epochs between the steps

A fix shortens one of these. No fix of feeding makes a step shorter than its limit (the same step with its batches on
the device already), nor, on a CPU, where step and workers share the cores, than the work of both divided by the cores.
The gain is whole / whole afterwards − 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from fulltilt.measure.observation import Loader, Observation, Phase, Stage

from .finding import Limits
from .thresholds import LIMITS

PHASES: tuple[Phase, ...] = (
    "data wait", "epoch start", "copy", "forward", "backward", "optimizer", "sync", "logging", "eval", "checkpoint",
    "other",
)  # fmt: skip
"""In the order in which a bar shows them: feeding first, then the step, then what is in its way."""

_LAUNCHING: tuple[Phase, ...] = ("forward", "backward", "optimizer")
MAKERS = frozenset({"collate", "hand over", "pin", "read", "decode", "item"})
"""Stages of a loader that are no transform."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One process's observation, per step."""

    observation: Observation
    limits: Limits
    read_source: Callable[[str], str | None] = lambda _: None
    """The text of a file of the user's, where it can be read."""

    @cached_property
    def steps(self) -> int:
        return len(self.observation.steps)

    @cached_property
    def step(self) -> float:
        """Mean seconds of a step; more than its phases, which are the host's, where that runs ahead of the GPU."""
        return self.observation.step_seconds / self.steps if self.steps else 0.0

    @cached_property
    def phases(self) -> dict[Phase, float]:
        """Mean seconds of each phase within the steps."""
        if not self.steps:
            return {}
        return {
            phase: fsum(step.phases.get(phase, 0.0) for step in self.observation.steps) / self.steps for phase in PHASES
        }

    @cached_property
    def outside(self) -> dict[Phase, float]:
        """Seconds between the steps, for each step.

        An epoch's start is shared out among all steps of an epoch, of which only a part may have been watched.
        """
        if not self.steps:
            return {}
        shared = {phase: seconds / self.steps for phase, seconds in self.observation.outside.items()}
        loader = self.train_loader
        if "epoch start" in shared and loader is not None and loader.start_seconds is not None:
            shared["epoch start"] = loader.start_seconds / self.epoch_steps
        return shared

    def cost(self, phase: Phase) -> float:
        """Seconds per step, within the steps and between them."""
        return self.phases.get(phase, 0.0) + self.outside.get(phase, 0.0)

    @cached_property
    def whole(self) -> float:
        return self.step + fsum(self.outside.values())

    @cached_property
    def unit(self) -> str:
        """What rates count."""
        return "samples" if self.observation.samples_per_second is not None else "steps"

    @cached_property
    def rate(self) -> float | None:
        """Samples per second (steps, where samples can't be counted), the starts of epochs included."""
        return self.per_step / self.fed_step if self.per_step is not None and self.fed_step else None

    @cached_property
    def fed_step(self) -> float:
        """Seconds of a step with its share of an epoch's start; evaluation and checkpoints are left out."""
        return self.step + self.outside.get("epoch start", 0.0)

    @cached_property
    def per_step(self) -> float | None:
        """Samples of a step; 1 where steps are what is counted."""
        if not self.step:
            return None
        counted = self.observation.samples_per_second
        return 1.0 if counted is None else counted * self.step

    @cached_property
    def limit(self) -> float | None:
        """Seconds of a step at its limit, never above the step itself: noise is no loss."""
        if self.limits.step is None or not self.per_step:
            return None
        return min(self.per_step / self.limits.step, self.step)

    @cached_property
    def train_loader(self) -> Loader | None:
        """The loader that is trained from; of several the one with most samples."""
        loaders = [loader for loader in self.observation.loaders if loader.role != "eval"]
        named = [loader for loader in loaders if loader.role == "train"] or loaders
        return max(named, key=lambda loader: loader.samples or 0, default=None)

    @cached_property
    def wait(self) -> float:
        """Seconds of a step in which its batch is waited for."""
        return self.phases.get("data wait", 0.0)

    @cached_property
    def start(self) -> float:
        """Seconds of a step, on average, that the starts of epochs take within the steps."""
        return self.phases.get("epoch start", 0.0)

    @cached_property
    def own(self) -> float:
        return max(self.step - self.wait - self.start, 0.0)

    @cached_property
    def loader(self) -> float:
        """Seconds that the loader needs for a step's samples, as it is set now."""
        loader = self.train_loader
        alone = self.limits.loader
        if loader is not None and loader.num_workers == 0 and self.wait > 0:
            return self.wait  # nothing overlaps: the wait is the work
        if alone and self.per_step and self.unit == "samples":
            return self.per_step / alone
        return self.step if self.wait > 0 else 0.0

    @cached_property
    def work(self) -> float:
        """Seconds of one core that the loader's work for a step takes."""
        loader = self.train_loader
        if loader is None:
            return 0.0
        timed = fsum(stage.seconds for stage in loader.stages)
        if timed > 0 and self.per_step and self.unit == "samples":
            return timed * self.per_step
        return self.loader * max(1, min(loader.num_workers, self.cores))

    @cached_property
    def core_work(self) -> float:
        """Of `work`, what a core is busy with: waiting for a disk needs none."""
        loader = self.train_loader
        if loader is None or not loader.stages:
            return self.work
        timed = fsum(stage.seconds for stage in loader.stages)
        waited = fsum(stage.seconds * waited_share(stage) for stage in loader.stages if self.waits_for_files(stage))
        return self.work * (1 - waited / timed) if timed > 0 else self.work

    def waits_for_files(self, stage: Stage) -> bool:
        """For a disk or a network. Where all cores are busy everything waits, for a core: that is not meant."""
        found = self.observation.surroundings
        busy = found is not None and found.cpu_share is not None and found.cpu_share >= LIMITS.busy_cpu
        least = LIMITS.waiting_read_when_busy if busy else LIMITS.waiting_read
        return stage.name not in ("collate", "hand over", "pin") and waited_share(stage) >= least

    @cached_property
    def cores(self) -> int:
        found = self.observation.surroundings
        return max(1, found.cores if found is not None else 1)

    @cached_property
    def on_gpu(self) -> bool:
        training = self.observation.training
        return training is not None and training.device.startswith("cuda")

    @cached_property
    def gpu_busy(self) -> float | None:
        """Seconds of a step in which the GPU works: its kernels, where they were counted, or the driver's utilisation.

        The driver's figure is an average over up to a second, and over all processes.
        """
        training, found = self.observation.training, self.observation.surroundings
        if training is not None and training.kernel_seconds is not None:
            return min(training.kernel_seconds, self.step)
        return None if found is None or found.gpu_share is None else found.gpu_share * self.step

    @cached_property
    def launching(self) -> float | None:
        """Seconds that the host takes to launch a step's work, where the GPU is seen to wait for it or for data.

        Elsewhere the host runs ahead until the queue is full, and its time is the GPU's: None. Where kernels were
        counted, it is no more than they can have cost: the rest is other work of the host's.
        """
        busy = self.gpu_busy
        idle = busy is not None and busy < LIMITS.idle_gpu * self.own
        if not self.on_gpu or not self.steps or not (idle or self.wait >= LIMITS.data_wait * self.step):
            return None
        waits = fsum(sync.seconds for sync in self.observation.syncs if sync.implicit) / self.steps
        each = sorted(fsum(step.phases.get(phase, 0.0) for phase in _LAUNCHING) for step in self.observation.steps)
        found = max(each[len(each) // 10] - waits, 0.0)
        training = self.observation.training
        if training is not None and training.launches is not None:
            found = min(found, training.launches * LIMITS.slow_launch_seconds)
        return found or None

    @cached_property
    def headroom(self) -> float | None:
        """1 − actual / limit; on a CPU no more than the waits that were seen.

        There all moments are in a phase, so what lies beyond is another load of the machine, or workers that crowd it.
        """
        if self.limit is None or not self.step:
            return None
        found = max(1 - self.limit / self.fed_step, 0.0)
        if self.on_gpu or self.crowded or self.observation.world > 1:  # ranks wait for each other within the step
            return found
        waits = self.wait + self.cost("epoch start") + self.phases.get("copy", 0.0)
        return min(found, waits / self.fed_step)

    @cached_property
    def crowded(self) -> bool:
        """Workers and threads are more than the cores, and the step's own work suffers from it."""
        loader, training = self.train_loader, self.observation.training
        if loader is None or self.limit is None:
            return False
        threads = 1 if training is None or self.on_gpu else training.threads
        return loader.num_workers + threads > self.cores and self.own >= LIMITS.contention * self.limit

    @cached_property
    def starved(self) -> bool:
        """The loop waits for its loader, and to feed it better would win something."""
        if not self.step or self.wait < LIMITS.data_wait * self.step:
            return False
        return self.headroom is None or self.headroom >= LIMITS.no_headroom

    @cached_property
    def epoch_steps(self) -> float:
        """Steps from one start of the loader to the next."""
        loader = self.train_loader
        if loader is None:
            return float(max(self.steps, 1))
        if loader.samples and loader.batch_size and self.per_step and self.unit == "samples":
            return max(loader.samples / self.per_step / max(self.observation.world, 1), 1.0)
        # A data set that gives whole batches, or one without a length: as many epochs as were seen to begin.
        waited = self.observation.outside.get("epoch start", 0.0)
        begun = waited / loader.start_seconds if loader.start_seconds else 0.0
        return max(self.steps / max(begun, loader.starts, 1), 1.0)

    @cached_property
    def host(self) -> float:
        """Seconds of a step that the host itself works, neither waiting for data nor for the GPU."""
        return max(self.own - self.sync, 0.0)

    @cached_property
    def sync(self) -> float:
        """Seconds of a step in which the GPU is waited for; those that are only heard lie in other phases."""
        heard = fsum(sync.seconds for sync in self.observation.syncs if sync.implicit)
        return min(self.phases.get("sync", 0.0) + heard / max(self.steps, 1), self.own)

    def shared(self, core_work: float) -> float:
        """The least that a step can take when that much loading has to be done beside it."""
        training = self.observation.training
        if self.on_gpu or training is None:
            return (core_work + self.host) / self.cores
        alone = self.limit if self.limit is not None else self.own
        return (core_work + alone * min(max(training.threads, 1), self.cores)) / self.cores

    def gain(self, *, step: float | None = None, outside: float | None = None) -> float:
        """What follows when a step takes `step` seconds and what lies outside `outside` per step; never below zero."""
        within = self.step if step is None else max(step, 0.0)
        between = self.whole - self.step if outside is None else max(outside, 0.0)
        after = within + between
        return max(self.whole / after - 1, 0.0) if after > 0 else 0.0

    def fed(self, loader: float, *, own: float | None = None, core_work: float | None = None) -> float:
        """Seconds of a step when workers need that long for its samples while the step's own work takes `own`."""
        working = self.own if own is None else own
        bound = self.shared(self.core_work if core_work is None else core_work)
        return min(max(loader, working, bound, self.limit or 0.0) + self.start, self.step)

    def stepping(self, own: float) -> float:
        """Seconds of a step when its own work takes `own` and feeding stays as it is."""
        loader = self.train_loader
        if loader is None or loader.num_workers == 0:
            return own + self.wait + self.start
        if self.wait >= LIMITS.data_wait * self.step:
            return self.step  # a step that ends earlier waits longer for its batch
        return min(max(own + self.wait, self.loader) + self.start, self.step)

    def ranked_stages(self) -> list[tuple[Stage, float]]:
        """Stages of the training loader with their shares of its work, the greatest first."""
        loader = self.train_loader
        stages = [] if loader is None else sorted(loader.stages, key=lambda stage: -stage.seconds)
        timed = fsum(stage.seconds for stage in stages)
        return [(stage, stage.seconds / timed) for stage in stages] if timed > 0 else []


def waited_share(stage: Stage) -> float:
    """Share of the stage in which no core worked for it."""
    if stage.cpu_seconds is None or stage.seconds <= 0:
        return 0.0
    return max(1 - stage.cpu_seconds / stage.seconds, 0.0)


def transforms(stages: list[tuple[Stage, float]]) -> list[tuple[Stage, float]]:
    return [(stage, share) for stage, share in stages if stage.name not in MAKERS]
