"""The whole of a run's state, to checkpoints and back."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from fulltilt.errors import CheckpointError, FulltiltError, InputError
from fulltilt.feed.base import Feed
from fulltilt.machine.ranks import rank, several, world
from fulltilt.train.checkpoint import Checkpoints, check_matches, folder, load_checkpoint, rng
from fulltilt.train.checkpoint.keep import Entry, newest_first
from fulltilt.train.checkpoint.ranks import team
from fulltilt.train.checkpoint.store import read_run
from fulltilt.train.place import FORMAT, MidEpoch, check_format, is_finite
from fulltilt.train.ranks.fsdp import begin_states, is_sharded, spread
from fulltilt.train.ranks.shared import batches_done, check_place
from fulltilt.train.schedules import Schedules
from fulltilt.train.step.step import HybridPrecisionTrainer
from fulltilt.train.training import Position

log = logging.getLogger("fulltilt.train")

OWN = ("rng", "middle")
"""What differs from rank to rank, and is kept for each: random states, and the epoch's counts so far."""


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
        self._run = secrets.token_hex(8)
        """Names the run, across resumes: in a folder with others' checkpoints, it tells which are its own."""

    @property
    def folder(self) -> Path | None:
        return None if self.checkpoints is None else self.checkpoints.folder

    def wait(self) -> None:
        """Until what is being saved is on the disk."""
        if self.checkpoints is not None:
            self.checkpoints.wait()

    @contextmanager
    def at_rest_after(self) -> Iterator[None]:
        """Among several processes nothing is left being written behind an error: the group may be closed next."""
        try:
            with self._claimed():
                yield
        except BaseException:
            if several():
                try:
                    self.wait()
                except FulltiltError as error:
                    log.warning("%s", error)
            raise

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Two trainings into one folder are most often a mistake, and each removes the other's as its own."""
        if self.folder is None or rank() != 0:
            yield
            return
        with folder.claimed(self.folder) as alone:
            if not alone:
                _warn("another process trains into %s as well: checkpoints of both give way to each other", self.folder)
            yield

    @property
    def _model(self) -> nn.Module:
        return self._stepper.model

    def save(
        self, position: Position, middle: MidEpoch | None, *, best: Mapping[str, Any], metric: float | None
    ) -> None:
        """Begin to save; returns at once. Without a folder nothing is saved, and not twice at the same place."""
        here = (position.epoch, position.step)
        if self.checkpoints is None or (here == self._saved and metric is None):
            return
        self._saved = here
        state = {
            "format": FORMAT,
            "run": self._run,
            "model": self._model.state_dict(),
            "trainer": self._stepper.state_dict(),
            "schedulers": self._schedules.state_dict(),
            "rng": rng.take(),
            "feed": self._source.state_dict(),
            "epoch": position.epoch,
            "step": position.step,
            "world": world(),
            "middle": None if middle is None else middle.state_dict(),
            "metrics": dict(best),
            "config": self._config,
        }
        self.checkpoints.save(state, step=position.step, epoch=position.epoch, metric=metric, run=self._run)

    def load(self, path: str | os.PathLike[str] | None = None, *, before_step: int | None = None) -> dict[str, Any]:
        """A checkpoint that can be gone on from: the given one, or the newest good one (made before a step)."""
        self.wait()
        return self._newest_good(before_step) if path is None else self._checked(self._read(Path(path)))

    def exist(self) -> bool:
        """Whether there are checkpoints, good or not; all ranks get the same answer."""
        return self.folder is not None and team().from_first(lambda: bool(self._entries()))

    def restore(self, state: dict[str, Any], position: Position) -> MidEpoch | None:
        """Put everything back but the random states, whose moment comes later. What does not fit changes nothing."""
        if is_sharded(self._model):
            spread(state, self._model, self._stepper.optimizers)
        self._stepper.check_state_dict(state["trainer"])
        self._schedules.check_state(state["schedulers"])
        place, middle = check_place(self._source, state["feed"]), self._middle(state)
        self._source.load_state_dict(place)  # first: a feed looks for itself whether the place is one of its own
        self._model.load_state_dict(state["model"])
        self._stepper.load_state_dict(state["trainer"])
        self._schedules.load_state_dict(state["schedulers"])
        self._saved, self._run = None, state.get("run", self._run)
        position.epoch, position.step = int(state["epoch"]), int(state["step"])
        return middle

    def remove_from(self, step: int) -> None:
        """Remove what this run has saved at or after a step that turned out bad; another run's stay."""

        def remove() -> None:
            for entry in self._entries():
                if entry.step >= step and self._is_own(entry):
                    folder.remove(entry.path)
                    log.info("removed %s: it was saved after the batch that is left out", entry.path.name)

        team().from_first(remove)

    def _is_own(self, entry: Entry) -> bool:
        return read_run(entry.path) == self._run

    def _middle(self, state: Mapping[str, Any]) -> MidEpoch | None:
        if state["middle"] is None:
            return None
        middle = MidEpoch.of(state["middle"])
        done = batches_done(self._source, state["feed"])
        if done is not None:
            middle.sums.batches = done
        if (then := state.get("world", 1)) != world():
            if middle.metrics is not None and rank() == 0:
                log.info("training metrics of this epoch are counted from here: %d processes began to", then)
            middle.for_other_world(then, world())
        return middle

    def _read(self, path: Path) -> dict[str, Any]:
        into = None
        if is_sharded(self._model):  # each rank reads its own part
            begin_states(self._stepper.optimizers)
            into = {"model": self._model.state_dict(), "trainer": self._stepper.state_dict()}
        if self.checkpoints is None:
            return load_checkpoint(path, into=into)
        return self.checkpoints.load(path, into=into)

    def _checked(self, state: dict[str, Any]) -> dict[str, Any]:
        check_format(state)
        check_matches(self._model, state)
        return state

    def _newest_good(self, before_step: int | None) -> dict[str, Any]:
        def candidates() -> list[Path]:
            """A way back leads along this run; to go on, any run will do."""
            entries = self._entries()
            if before_step is not None:
                entries = [entry for entry in entries if entry.step < before_step and self._is_own(entry)]
            return [entry.path for entry in entries]

        paths = team().from_first(candidates)
        for path in paths:
            try:
                state = self._read(path)
            except CheckpointError as error:
                _warn("%s; trying the one before it", error)
                continue
            if all(team().share(is_finite(self._model, state.get("model", {})))):
                return self._checked(state)
            _warn("the checkpoint %s holds weights that are not numbers; trying the one before it", path)
        if paths:
            raise CheckpointError(f"none of the {len(paths)} checkpoints in {self.folder} can be used")
        raise CheckpointError(f"there is no checkpoint in {self.folder}; name another folder, or begin anew")

    def _entries(self) -> list[Entry]:
        if self.folder is None:
            raise InputError("there are no checkpoints: set output, or give a checkpoint's path")
        return newest_first(folder.entries(self.folder))


def _warn(text: str, what: object) -> None:
    if rank() == 0:
        log.warning(text, what)
