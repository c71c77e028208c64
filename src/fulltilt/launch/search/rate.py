"""How fast a watched script trained, and how sure that is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fulltilt.diagnose.figures import Figures
from fulltilt.diagnose.finding import Limits
from fulltilt.measure.observation import Observation, Phase, Step

_BLOCKS = 8
_LEAST_IN_BLOCK = 4
_LEAST_STEPS = 5
_LEAST_NOISE = 0.005
"""Two runs of one script differ by as much, however even each of them is."""
_FEW_STEPS_NOISE = 0.1
_ODD = 0.05
"""Of the steps, those that are the first of their size: where they are more, sizes vary, and none of them is odd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Samples per second (steps, where samples can't be counted)."""

    value: float
    noise: float
    """Standard error, relative."""
    waits: float | None = None
    """Share of the step in which the loop waits for a batch."""


def rate_of(observation: Observation) -> Rate | None:
    """What the script's steps came to, epochs' starts included as an epoch's share of them; None without steps."""
    steps = settled(observation.steps)
    if len(steps) < _LEAST_STEPS:
        return None
    observation = replace(observation, steps=steps)
    seconds = [step.seconds for step in steps]
    samples = [step.samples for step in steps if step.samples is not None]
    count = sum(samples) if len(samples) == len(steps) else len(steps)
    total = observation.step_seconds + len(steps) * _start_seconds(observation)
    waits, _ = waited(observation)
    return Rate(value=count / total, noise=_noise(seconds), waits=waits / total) if total > 0 else None


def settled(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Without the first step of each further size, such as an epoch's last batch: kernels are chosen for it, a graph is
    captured, the model compiled once more. That is paid once in a training, and would be most of a short trial."""
    known: set[int | None] = set()
    kept = []
    for step in steps:
        if not known or step.samples in known:
            kept.append(step)
        known.add(step.samples)
    left_out = len(steps) - len(kept)
    few = left_out <= max(1, _ODD * len(steps)) and len(kept) >= _LEAST_STEPS
    return tuple(kept if few else steps)


def _start_seconds(observation: Observation) -> float:
    """An epoch's start, shared out among its steps; none where it is not known how many those are."""
    loader = observation.train_loader
    if loader is None or loader.start_seconds is None or not loader.samples or not loader.batch_size:
        return 0.0
    return loader.start_seconds / Figures(observation=observation, limits=Limits(step=None, loader=None)).epoch_steps


def waited(observation: Observation) -> tuple[float, float]:
    """Seconds in which the loop waited for a batch, and those of all steps. Where another thread asks for the batches,
    what is waited for them may be all that lies in no phase."""
    steps, loader = observation.steps, observation.train_loader
    phase: Phase = "other" if loader is not None and loader.elsewhere else "data wait"
    return math.fsum(step.phases.get(phase, 0.0) for step in steps), math.fsum(step.seconds for step in steps)


def _noise(seconds: list[float]) -> float:
    """From blocks of steps: single ones are uneven by nature, as batches come in bursts."""
    size = max(_LEAST_IN_BLOCK, -(-len(seconds) // _BLOCKS))
    blocks = [math.fsum(seconds[at : at + size]) / size for at in range(0, len(seconds) - size + 1, size)]
    if len(blocks) < 3:
        return _FEW_STEPS_NOISE
    return max(_LEAST_NOISE, statistics.stdev(blocks) / statistics.fmean(blocks) / math.sqrt(len(blocks)))
