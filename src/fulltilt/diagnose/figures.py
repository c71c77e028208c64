"""What an observation comes down to per step, and the model that predicts a gain.

The model, in seconds per step:

    step   = wait + start + own               start: the waits for the epochs' first batches; own: all other phases
    wait   = max(0, loader − own)             with workers, which load while the step works
           = loader                           without: nothing overlaps
    whole  = step + outside / steps           evaluation, checkpoints, starts of epochs between the steps

A fix shortens one of these. No fix of feeding makes a step shorter than its limit (the same step with its batches on
the device already), nor, on a CPU, where step and workers share the cores, than the work of both divided by the cores.
There workers make `own` longer, too, by no more than their work: what makes that less makes `own` less likewise.
The gain is whole / whole afterwards − 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from fulltilt.measure.observation import Loader, Observation, Phase, Stage

from .finding import Limits
from .thresholds import THRESHOLDS

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
    local_ranks: int = 1
    """Processes of the training that were watched on this machine: they share its cores."""

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
        return self.observation.train_loader

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
        timed = fsum(map(self.taken, self._stages)) * (self.per_step or 0.0)
        return timed if timed > 0 else self.loader * max(1, min(loader.num_workers, self.cores))

    @cached_property
    def core_work(self) -> float:
        """Of `work`, what a core is busy with: waiting for a disk needs none. A decoder's own threads are not seen."""
        core = fsum(map(core_seconds, self._stages)) * (self.per_step or 0.0)
        return core if self._stages else self.work

    @cached_property
    def file_work(self) -> float:
        """Of `work`, what files are waited for."""
        waited = (self.taken(stage) - core_seconds(stage) for stage in self._stages if self.waits_for_files(stage))
        return fsum(waited) * (self.per_step or 0.0)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        """Stages of the training loader; none where samples, of which they are, can't be counted."""
        return self.train_loader.stages if self.train_loader is not None and self.unit == "samples" else ()

    def taken(self, stage: Stage) -> float:
        """Seconds of a worker that the stage takes for a sample, without the waits for a core that the step was on."""
        core = core_seconds(stage)
        return core + self._own_waits * (stage.seconds - core)

    @cached_property
    def _own_waits(self) -> float:
        """Share of the stages' waits that are the loader's own, for a disk say: those that it has alone, too."""
        loader, alone = self.train_loader, self.limits.loader
        core = fsum(map(core_seconds, self._stages))
        waited = fsum(stage.seconds for stage in self._stages) - core
        if loader is None or not alone or waited <= 0:
            return 1.0
        return min(max((max(loader.num_workers, 1) / alone - core) / waited, 0.0), 1.0)

    def waits_for_files(self, stage: Stage) -> bool:
        """For a disk or a network. Where all cores are busy everything waits, for a core: that is not meant."""
        found = self.observation.surroundings
        busy = found is not None and found.cpu_share is not None and found.cpu_share >= THRESHOLDS.busy_cpu
        least = THRESHOLDS.waiting_read_when_busy if busy else THRESHOLDS.waiting_read
        return stage.name not in ("collate", "hand over", "pin") and self.waited_share(stage) >= least

    def waited_share(self, stage: Stage) -> float:
        """Share of the stage in which no core worked for it."""
        taken = self.taken(stage)
        return 1 - core_seconds(stage) / taken if taken > 0 else 0.0

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
        idle = busy is not None and busy < THRESHOLDS.idle_gpu * self.own
        if not self.on_gpu or not self.steps or not (idle or self.wait >= THRESHOLDS.data_wait * self.step):
            return None
        waits = fsum(sync.seconds for sync in self.observation.syncs if sync.implicit) / self.steps
        each = sorted(fsum(step.phases.get(phase, 0.0) for phase in _LAUNCHING) for step in self.observation.steps)
        found = max(each[len(each) // 10] - waits, 0.0)
        training = self.observation.training
        if training is not None and training.launches is not None:
            found = min(found, training.launches * THRESHOLDS.slow_launch_seconds)
        return found or None

    @cached_property
    def headroom(self) -> float | None:
        """1 − actual / limit; on a CPU no more than was seen to be in the step's way."""
        if self.reach is None or not self.step:
            return None
        return max(1 - self.reach / self.fed_step, 0.0)

    @cached_property
    def reach(self) -> float | None:
        """Seconds of a step that feeding it better can bring it down to.

        That is its limit, but on a CPU all moments are in a phase: there it is the step without its waits and what its
        workers cost it. What lies beyond is another load of the machine.
        """
        if self.limit is None or self.on_gpu or self.observation.world > 1:  # ranks wait for each other within the step
            return self.limit
        return max(self.limit, self.own - self.phases.get("copy", 0.0) - self.crowding)

    @cached_property
    def crowding(self) -> float:
        """Seconds that workers cost the step's own work, where they and its threads are more than the cores.

        A team of threads waits for the one whose core a worker has taken, but no longer than that works.
        """
        loader, training = self.train_loader, self.observation.training
        if loader is None or not loader.num_workers or self.limit is None:
            return 0.0
        threads = 1 if training is None or self.on_gpu else training.threads
        if (loader.num_workers + threads) * self.local_ranks <= self.cores:
            return 0.0
        cost = min(self.own - self.limit, self.core_work)
        return cost if cost >= (THRESHOLDS.contention - 1) * self.limit else 0.0

    @cached_property
    def starved(self) -> bool:
        """The loop waits for its loader, and to feed it better would win something."""
        if not self.step or self.wait < THRESHOLDS.data_wait * self.step:
            return False
        return self.headroom is None or self.headroom >= THRESHOLDS.no_headroom

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
        return min(max(loader, working, bound, self.reach or 0.0) + self.start, self.step)

    def stepping(self, own: float) -> float:
        """Seconds of a step when its own work takes `own` and feeding stays as it is."""
        loader = self.train_loader
        if loader is None or loader.num_workers == 0:
            return own + self.wait + self.start
        if self.wait >= THRESHOLDS.data_wait * self.step:
            return self.step  # a step that ends earlier waits longer for its batch
        return min(max(own + self.wait, self.loader) + self.start, self.step)

    def ranked_stages(self) -> list[tuple[Stage, float]]:
        """Stages of the training loader with their shares of its work, the greatest first."""
        loader = self.train_loader
        stages = [] if loader is None else sorted(loader.stages, key=lambda stage: -self.taken(stage))
        timed = fsum(map(self.taken, stages))
        return [(stage, self.taken(stage) / timed) for stage in stages] if timed > 0 else []


def core_seconds(stage: Stage) -> float:
    """Of one core, per sample; all of its time where it was not told apart."""
    return stage.seconds if stage.cpu_seconds is None else min(stage.cpu_seconds, stage.seconds)


def transforms(stages: list[tuple[Stage, float]]) -> list[tuple[Stage, float]]:
    return [(stage, share) for stage, share in stages if stage.name not in MAKERS]
