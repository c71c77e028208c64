"""One epoch of training: batch, augmentation, step, and as little else as can be.

Between two steps the loop notes the loss without reading it and compares three numbers to see whether something is due.
A step of a small model takes a quarter of a millisecond.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fulltilt.assist.beside import MetricsBeside
from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, OrderedFeed
from fulltilt.train.augmenting import LoopAugmentation
from fulltilt.train.checkpoint import rng
from fulltilt.train.labels import watched
from fulltilt.train.losses import Losses
from fulltilt.train.place import Batch, MidEpoch
from fulltilt.train.ranks.together import largest
from fulltilt.train.report.progress import Bar
from fulltilt.train.schedules import Schedules
from fulltilt.train.signals import StopSignals
from fulltilt.train.sources import batches
from fulltilt.train.step.roles import target_place
from fulltilt.train.step.step import HybridPrecisionTrainer
from fulltilt.train.unpacking import Unpacking

log = logging.getLogger("fulltilt.train")

_END = object()


@dataclass(slots=True)
class Position:
    """How far training has come."""

    epoch: int = 0
    """Epochs completed."""
    step: int = 0
    """Batches stepped with, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What is to be done between two steps, now and then."""

    next_step: Callable[[], int]
    """The step after which something is due."""
    do: Callable[[], bool]
    """Do it; True asks to stop."""
    refresh: Callable[[], None]
    """Draw the bar."""


class Training:
    """Epochs of the training feed."""

    def __init__(
        self,
        stepper: HybridPrecisionTrainer,
        source: Feed,
        losses: Losses,
        *,
        augment: LoopAugmentation | None,
        metrics: MetricsBeside | None,
        schedules: Schedules,
        unpacking: Unpacking,
        even: bool = True,
    ) -> None:
        """
        Args:
            even: all ranks are known to have as many batches; otherwise they ask each other before each step.
        """
        self.source, self.losses, self.augment, self.metrics = source, losses, augment, metrics
        self._labels = watched(source, stepper.objective, stepper.device, augment)
        self.batches = batches(source)
        """In an epoch, where that is known."""
        self.left_out: set[tuple[int, int]] = set()
        """Batches, as (epoch, number), that are passed over: a rollback has found them bad."""
        self._stepper, self._schedules, self._unpacking = stepper, schedules, unpacking
        self._even = even
        self._random: Mapping[str, Any] | None = None
        self._resumes = False
        self._mark = 0.0

    def begin(self, epoch: int, middle: MidEpoch | None, random: Mapping[str, Any] | None) -> None:
        """
        Args:
            middle: where an epoch was left that is gone on with; the feed stands there already.
            random: states to go on from, where a run was left.
        """
        self._resumes, self._random = middle is not None, random
        if middle is None:
            self.source.set_epoch(epoch)
            if random is not None:  # something may have drawn since the resume: a look at the validation, say
                rng.restore(random)
        else:  # a loop that was broken off is taken up from a place that was loaded only
            self.source.load_state_dict(self.source.state_dict())
        self.losses.begin(middle)
        if self.augment is not None:
            self.augment.begin(epoch, None if middle is None else middle.augmentation)
        if self.metrics is not None:
            self.metrics.reset()
            if middle is not None and middle.metrics is not None:
                self.metrics.load_state_dict(middle.metrics)

    def run(self, position: Position, signals: StopSignals, duties: Duties, bar: Bar) -> bool:
        """Step until the epoch is over (True), or until a signal or a duty wants to stop (False)."""
        sums = self.losses.sums
        self._mark = time.perf_counter()
        try:
            complete = self._steps(position, signals, duties, bar)
            self.losses.look(wait=True)  # the device is as far, but for the last update: that, too, is the epoch's time
        finally:
            self._note_time()
        if sums.batches == 0:
            hint = "; an iterator is used up after one epoch: pass what can be iterated again" * (position.epoch > 0)
            raise InputError(f"train_loader yields nothing in epoch {position.epoch + 1}{hint}")
        return complete

    def middle(self) -> MidEpoch:
        """Where the epoch stands, to be saved; nothing is waited for."""
        self._note_time()
        return MidEpoch(
            sums=self.losses.sums,
            awaited=list(self.losses.awaited),
            losses=self.losses.watch.pending(),
            augmentation=None if self.augment is None else self.augment.state_dict(),
            metrics=None if self.metrics is None else self.metrics.state_dict(),
        )

    def _steps(self, position: Position, signals: StopSignals, duties: Duties, bar: Bar) -> bool:  # noqa: PLR0912, PLR0915
        clock, losses, stepper = time.perf_counter, self.losses, self._stepper
        sums, awaited, watch = losses.sums, losses.awaited, losses.watch
        train_step, note_wait = stepper.train_step, stepper.note_wait
        metrics, per_step, left_out = self.metrics, self._schedules.per_step, self.left_out
        prepare: Callable[[Any], Any] | None = None
        epoch, step, place, even = position.epoch + 1, position.step, -1, self._even
        source, waited = self.source, self.source.waited_seconds
        iterator = iter(source)
        due = duties.next_step()
        first, done_before = True, sums.batches
        while True:
            try:
                batch: Any = next(iterator, _END)
            except Exception:
                if signals.asked is None:
                    raise
                return False  # Ctrl-C goes to a loader's processes, too: without them there is no next batch
            now = clock()
            if not even and largest(batch is _END):
                return True  # one has no more: the others leave the rest of theirs
            if batch is _END:
                if self._resumes and sums.batches == done_before:
                    self._restore_random()
                    self._say_nothing_left(done_before)
                return True
            sums.batches += 1
            before, waited = waited, source.waited_seconds
            sums.waited += waited - before
            note_wait(waited - before)
            if left_out and (epoch, sums.batches) in left_out:
                continue
            if first:
                prepare = self._unpacking.prepared(batch, self.augment, name="train_loader")
                stepper.target = self._unpacking.place
                self._restore_random()
            if prepare is not None:
                batch = prepare(batch)
            try:
                loss, outputs = train_step(*batch)
            except InputError as error:
                raise InputError(f"epoch {epoch}, batch {sums.batches}: {error}") from error
            step += 1
            position.step = step
            samples = len(batch[0])
            sums.samples += samples
            if first:
                first, place = False, target_place(tuple(batch), stepper.target)
                if self._labels is not None:
                    self._labels.know(self._unpacking.target_key or place)
            awaited.append(Batch(step, epoch, sums.batches, samples))
            if watch.add(loss):
                losses.look()
            if metrics is not None:
                metrics.add(outputs, batch[place])
            if per_step and stepper.stepped:
                for scheduler in per_step:
                    scheduler.step()
            if step >= due:
                if duties.do():
                    return False
                due = duties.next_step()
            if now >= bar.due:
                duties.refresh()
            if signals.asked is not None and not (self.batches and sums.batches >= self.batches):
                return False

    def _say_nothing_left(self, done: int) -> None:
        """Without a word, data that have become fewer since would look like an epoch."""
        if done != self.batches:
            log.warning(
                "train_loader has no batch after the %d that the checkpoint had been through, so this epoch ends here; "
                "if the data have become fewer since, its figures are not a whole epoch's",
                done,
            )

    def _note_time(self) -> None:
        now = time.perf_counter()
        self.losses.sums.seconds += now - self._mark
        self._mark = now

    def _restore_random(self) -> None:
        """The first batch after a resume is there: whatever was drawn to get it was not drawn in the saved run.

        Except at an epoch's beginning, where a DataLoader draws its order as it would have.
        """
        if self._random is not None and (self._resumes or isinstance(self.source, OrderedFeed)):
            rng.restore(self._random)
        self._random = None
