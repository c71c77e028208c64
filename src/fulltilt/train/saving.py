"""The whole of a run's state, to checkpoints and back."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fulltilt.errors import CheckpointError, InputError
from fulltilt.feed.base import Feed
from fulltilt.train.checkpoint import Checkpoints, check_matches, folder, load_checkpoint, rng
from fulltilt.train.checkpoint.keep import Entry, newest_first
from fulltilt.train.checkpoint.ranks import team
from fulltilt.train.place import FORMAT, MidEpoch, check_format, is_finite
from fulltilt.train.schedules import Schedules
from fulltilt.train.step import HybridPrecisionTrainer
from fulltilt.train.training import Position

log = logging.getLogger("fulltilt.train")


class Saving:
    """What is saved of a run, and put back."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        stepper: HybridPrecisionTrainer,
        source: Feed,
        schedules: Schedules,
        *,
        config: Mapping[str, Any],
    ) -> None:
        self.checkpoints = checkpoints
        self._stepper, self._source, self._schedules, self._config = stepper, source, schedules, dict(config)
        self._saved: tuple[int, int] | None = None

    @property
    def folder(self) -> Path | None:
        return None if self.checkpoints is None else self.checkpoints.folder

    def wait(self) -> None:
        """Until what is being saved is on the disk."""
        if self.checkpoints is not None:
            self.checkpoints.wait()

    @property
    def _model(self) -> nn.Module:
        return self._stepper.model

    def save(self, position: Position, middle: MidEpoch | None, *, best: float | None, metric: float | None) -> None:
        """Begin to save; returns at once. Without a folder nothing is saved, and not twice at the same place."""
        here = (position.epoch, position.step)
        if self.checkpoints is None or (here == self._saved and metric is None):
            return
        self._saved = here
        state = {
            "format": FORMAT,
            "model": self._model.state_dict(),
            "trainer": self._stepper.state_dict(),
            "schedulers": self._schedules.state_dict(),
            "rng": rng.take(),
            "feed": self._source.state_dict(),
            "epoch": position.epoch,
            "step": position.step,
            "middle": None if middle is None else middle.state_dict(),
            "metrics": {"best": best},
            "config": self._config,
        }
        self.checkpoints.save(state, step=position.step, epoch=position.epoch, metric=metric)

    def load(self, path: str | os.PathLike[str] | None = None, *, before_step: int | None = None) -> dict[str, Any]:
        """A checkpoint that can be gone on from: the given one, or the newest good one (made before a step)."""
        self.wait()
        if path is not None:
            return self._checked(load_checkpoint(path))
        return self._checked(load_checkpoint(team().from_first(lambda: str(self._newest_good(before_step)))))

    def restore(self, state: Mapping[str, Any], position: Position) -> MidEpoch | None:
        """Put everything back but the random states, whose moment comes later."""
        self._model.load_state_dict(state["model"])
        self._stepper.load_state_dict(state["trainer"])
        self._schedules.load_state_dict(state["schedulers"])
        self._source.load_state_dict(state["feed"])
        self._saved = None
        position.epoch, position.step = int(state["epoch"]), int(state["step"])
        return None if state["middle"] is None else MidEpoch.of(state["middle"])

    def remove_from(self, step: int) -> None:
        """Remove what was saved at or after a step that turned out bad."""
        for entry in self._entries():
            if entry.step >= step:
                folder.remove(entry.path)

    def _checked(self, state: dict[str, Any]) -> dict[str, Any]:
        check_format(state)
        check_matches(self._model, state)
        return state

    def _newest_good(self, before_step: int | None) -> Path:
        seen = 0
        for entry in self._entries():
            if before_step is not None and entry.step >= before_step:
                continue
            seen += 1
            try:
                state = load_checkpoint(entry.path)
            except CheckpointError as error:
                log.warning("%s; trying the one before it", error)
                continue
            if is_finite(self._model, state.get("model", {})):
                return entry.path
            log.warning("the checkpoint %s holds weights that are not numbers; trying the one before it", entry.path)
        if seen:
            raise CheckpointError(f"none of the {seen} checkpoints in {self.folder} can be used")
        raise CheckpointError(f"there is no checkpoint in {self.folder}; name another folder, or begin anew")

    def _entries(self) -> list[Entry]:
        if self.folder is None:
            raise InputError("there are no checkpoints: set output, or give a checkpoint's path")
        return newest_first(folder.entries(self.folder))
