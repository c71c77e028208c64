"""Which loss belongs to which batch, and what is done about one that is not a number."""

from __future__ import annotations

import logging
import math
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from fulltilt.errors import LossError
from fulltilt.machine.ranks import several
from fulltilt.train.nan import LossWatch, UpdateGuard
from fulltilt.train.place import Batch, MidEpoch, Sums

log = logging.getLogger("fulltilt.train")

Policy = Literal["raise", "skip", "rollback"]
_SHOWN = 5
"""Bad batches named in the log, each epoch; the rest are counted."""


class RollBackError(LossError):
    """Asks the loop to go back to before a batch; never seen outside of it."""

    def __init__(self, message: str, bad: Batch) -> None:
        super().__init__(message, step=bad.step, epoch=bad.epoch, batch=bad.batch)


class Losses:
    """The losses of training, in order."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device, policy: Policy) -> None:
        self.guard = UpdateGuard(model) if policy == "skip" else None
        self._optimizers = list(optimizers)
        buffers = () if self.guard is None else self.guard.buffers
        self.watch = LossWatch(device, buffers=buffers, together=several())
        self.awaited: deque[Batch] = deque()
        self.sums = Sums()
        self.last: float | None = None
        """The newest that has arrived."""
        self.values = array("d")
        """One per step that has arrived."""
        self._policy = policy

    def begin(self, middle: MidEpoch | None = None) -> None:
        """A new epoch, or one that goes on from its middle."""
        self.watch.forget()
        self.awaited.clear()
        self.sums = Sums() if middle is None else middle.sums
        if middle is not None and middle.losses is not None:
            self.awaited.extend(middle.awaited)
            self._settle(middle.losses.tolist())
            del self.values[-len(middle.losses) :]  # an earlier run's

    def look(self, *, wait: bool = False) -> None:
        """Settle what has arrived; with `wait`, everything."""
        self._settle(self.watch.take(wait=wait))

    def _settle(self, values: Sequence[float]) -> None:
        spoilt = False
        for value in values:
            batch = self.awaited.popleft()
            self.values.append(value)
            if math.isfinite(value):
                self.last = value
                self.sums.loss_sum += value * batch.samples
                self.sums.loss_samples += batch.samples
            else:
                self._bad(value, batch)
                spoilt = True
        if spoilt and self.guard is not None:
            self.guard.mend(self.watch.last_good)

    def _bad(self, value: float, batch: Batch) -> None:
        self.sums.bad_losses += 1
        what = f"the loss is {value} at step {batch.step} (epoch {batch.epoch}, batch {batch.batch})"
        if self._policy == "raise":
            raise LossError(
                f"{what}; look at that batch, lower the learning rate, set clip_norm or precision: fp32, "
                "or choose nan_policy: skip or rollback",
                step=batch.step,
                epoch=batch.epoch,
                batch=batch.batch,
            )
        if self._policy == "rollback":
            raise RollBackError(what, batch)
        if self.sums.bad_losses <= _SHOWN:
            log.warning("%s; its update is left out", what)

    def guarded(self) -> AbstractContextManager[None]:
        """While open, updates are looked after as the policy asks."""
        return nullcontext() if self.guard is None else self.guard.watching(self._optimizers)
