"""Where a run stands: what is saved of it, gone on from, and rolled back to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fulltilt.errors import LossError
from fulltilt.machine.ranks import rank
from fulltilt.train.checkpoint import rng
from fulltilt.train.losses import RollBackError
from fulltilt.train.place import MidEpoch
from fulltilt.train.report.monitored import Monitored
from fulltilt.train.report.report import Report
from fulltilt.train.saving import Saving
from fulltilt.train.seeding import part_ways
from fulltilt.train.training import Position, Training

_MOST_ROLLBACKS = 5
"""After so many without getting through an epoch, the cause is not some batch."""


class Course:
    """A run's position, and the ways to and from its checkpoints."""

    def __init__(self, saving: Saving, training: Training, monitored: Monitored, report: Report, *, lr: float) -> None:
        self.saving, self.position = saving, Position()
        self.resumed = False
        self._training, self._monitored, self._report, self._lr = training, monitored, report, lr
        self._middle: MidEpoch | None = None
        """An epoch that was left, to be gone on with."""
        self._random: Mapping[str, Any] | None = None
        """Random states to go on from."""
        self._rollbacks = self._bad_epoch = 0

    def begin_epoch(self) -> None:
        """The next epoch, or the rest of one."""
        self._training.begin(self.position.epoch, self._middle, self._random)
        self._middle = self._random = None

    def leave_epoch(self) -> None:
        """In its middle; it may be gone on with, by a resumed run or by another `fit`."""
        self._middle, self._random = self._training.middle(), rng.take()

    def end_epoch(self) -> None:
        """It is complete."""
        self.position.epoch += 1
        if self.position.epoch >= self._bad_epoch and self._training.losses.sums.samples:
            self._rollbacks = 0  # what was left out was all that was bad

    def save(self, metric: float | None = None) -> None:
        """Begin to save where the run stands, between two epochs or where one was left."""
        self.saving.save(self.position, self._middle, best=self._monitored.state_dict(), metric=metric)

    def save_under_way(self) -> None:
        """Begin to save amid an epoch that goes on."""
        self._middle = self._training.middle()
        self.save()
        self._middle = None

    def resume(self, path: str | os.PathLike[str] | None = None) -> None:
        """Go on from a checkpoint: the given one, or the newest good one."""
        self._restore(path)
        self.resumed = True

    def roll_back(self, bad: RollBackError) -> None:
        """To the last checkpoint before the bad batch, which is left out when its turn comes again."""
        self._rollbacks, self._bad_epoch = self._rollbacks + 1, max(self._bad_epoch, bad.epoch)
        if self._rollbacks > _MOST_ROLLBACKS:
            raise LossError(
                f"{bad}; {_MOST_ROLLBACKS} rollbacks did not help: lower the learning rate or set clip_norm, and look "
                "at the data",
                step=bad.step,
                epoch=bad.epoch,
                batch=bad.batch,
            ) from None
        report = self._report
        report.say("%s; rolling back", bad)
        record = {"epoch": bad.epoch, "batch": bad.batch, "bad_step": bad.step}
        report.write("rollback", record, step=self.position.step)
        self._training.left_out.add((bad.epoch, bad.batch))
        self._restore(before_step=bad.step)
        self.saving.remove_from(bad.step)

    def _restore(self, path: str | os.PathLike[str] | None = None, *, before_step: int | None = None) -> None:
        state = self.saving.load(path, before_step=before_step)
        self._middle = self.saving.restore(state, self.position)
        judged_by = self._monitored.load_state_dict(state["metrics"])
        rng.restore(state["rng"])
        if rank() >= state.get("world", 1):
            part_ways(rank())  # those of rank 0, since this rank was not there
        self._random = rng.take()
        position, say = self.position, self._report.say
        say("resuming from step %d (epoch %d)", position.step, position.epoch + 1)
        if judged_by != (name := self._monitored.name):
            say("epochs are judged by %s from here on, no longer by %s: the first is the best so far", name, judged_by)
        if (then := state.get("config", {}).get("lr", self._lr)) != self._lr:
            say("lr %g has no effect: the optimizer continues as it was saved, from %g", self._lr, then)
