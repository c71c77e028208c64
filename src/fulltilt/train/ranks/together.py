"""What the loops of several processes have to agree on. Alone, nothing is said."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fulltilt.machine.ranks import several, world
from fulltilt.train.ranks.own_group import own_group

_FIRST_STEPS = 16
_APART_SECONDS = 0.5
"""Ranks ask each other about this often whether one has been told to stop: torchrun waits 30 s for them to leave."""
_MOST_STEPS = 1000


def summed(values: Sequence[float], device: torch.device) -> list[float]:
    """Each value's sum over the ranks. Waits for them."""
    if not several():
        return list(values)
    told = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(told)
    return [float(value) for value in told.tolist()]


def mean_of_ranks(values: Tensor) -> None:
    """In place, on the device and in its order: nothing is waited for there."""
    dist.all_reduce(values)
    values /= world()


def everybodys(value: float) -> list[float]:
    """All ranks' numbers, by rank. Asked through the host: the device goes on meanwhile."""
    if not several():
        return [value]
    told = torch.tensor([value], dtype=torch.float64)
    answers = [torch.empty_like(told) for _ in range(world())]
    dist.all_gather(answers, told, group=own_group("loop"))
    return [float(answer) for answer in answers]


def largest(value: int) -> int:
    """The largest of all ranks' numbers."""
    return int(max(everybodys(value)))


@torch.no_grad()
def same_buffers(model: nn.Module) -> None:
    """Rank 0's buffers (running statistics) for all: each rank has gone on counting its own."""
    if several():
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


class Rhythm:
    """At which steps the ranks ask each other; the same ones on all of them."""

    def __init__(self) -> None:
        self.due = _FIRST_STEPS
        self._step, self._at = 0, time.perf_counter()

    def begin(self, step: int) -> None:
        """Steps are counted from here."""
        self._step, self._at, self.due = step, time.perf_counter(), step + _FIRST_STEPS

    def went_on(self, step: int) -> None:
        """They have just asked: by the slowest rank's pace, when is the next time?"""
        now = time.perf_counter()
        pace = max(everybodys((now - self._at) / max(step - self._step, 1)))
        self._step, self._at = step, now
        self.due = step + steps_apart(pace)


def steps_apart(step_seconds: float) -> int:
    return max(1, min(_MOST_STEPS, round(_APART_SECONDS / max(step_seconds, 1e-9))))
