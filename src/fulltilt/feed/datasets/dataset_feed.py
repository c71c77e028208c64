"""The feed of a map-style data set: its samples and collate, our order, workers whose number can change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fulltilt.errors import InputError
from fulltilt.feed.base import NOTHING, OrderedFeed, when_forgotten
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.clips.splits import Split
from fulltilt.feed.datasets.crew import Crew
from fulltilt.feed.datasets.hosting import Hosting
from fulltilt.feed.datasets.leg import Work
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.datasets.shelf import Request, batch_seed
from fulltilt.feed.mover import Mover
from fulltilt.feed.order import Order, Step
from fulltilt.feed.structure import Augmenter, samples_in
from fulltilt.machine.decision import Decision
from fulltilt.nested import map_tensors

_PATIENCE_SECONDS = 5.0
"""How long a worker that is at a batch may take to be through with it when its feed is closed."""


class DatasetFeed(OrderedFeed):
    """A map-style data set in our own order, so that it can be resumed anywhere."""

    def __init__(
        self,
        dataset: Any,
        order: Order,
        *,
        device: torch.device,
        hosting: Decision[Hosting],
        tune: bool,
        ahead: int,
        augment: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        told: bool = False,
    ) -> None:
        """
        Args:
            told: `collate` says which samples it was given, as `VideoClips.collate_told` does.
        """
        super().__init__(order)
        chosen = hosting.value
        self._dataset, self._device, self._told = dataset, device, told
        self._there: deque[NDArray[np.bool_]] = deque()
        """Which samples the workers gave, of steps that the loop has not seen yet."""
        self._keyed = bool(getattr(dataset, "takes_epoch", False))
        self._leaves_out = bool(getattr(dataset, "leaves_out", False))
        self._skipped = 0
        self._figures: Callable[[], dict[str, Any]] | None = None
        if isinstance(dataset, VideoClips):
            self._figures, self.classes = dataset.figures, dataset.classes
        work = Work(
            dataset=dataset,
            collate=collate,
            kind=chosen.kind,
            depth=chosen.depth,
            transport=chosen.transport,
            varies=tune,
        )
        self._crew = Crew(work, hosting, tune=tune)
        self._given: deque[Step] = deque()
        """Steps that workers have been asked for and the loop has not seen yet."""
        self.augmentation, self._augment = augment, Augmenter(augment)
        self._mover = Mover(device, depth=2, ahead=ahead)
        legs = self._crew.legs
        self._mover.workers = lambda: legs.pids
        self.split: Decision[Split] | None = None
        """Of videos: decoders and threads of each that the workers began with, and why."""
        self._finalizer = when_forgotten(self, shut, self._mover, legs)

    @property
    def hosting(self) -> Decision[Hosting]:
        """Processes or threads, how far ahead, how batches are handed over, and why."""
        return self._crew.hosting

    @property
    def decision(self) -> Decision[int] | None:
        """The number of workers that was chosen, once trying has ended; None while it goes on or when it was given."""
        return self._crew.decision

    def resize(self, workers: int) -> None:
        """Go on with another number of workers, chosen by hand."""
        self._check_open()
        if workers < 0:
            raise InputError(f"resize({workers}): a data set has 0 workers (the loop's own process) or more")
        self._crew.resize(workers)

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        self._mover.inspect = look
        return True

    def stats(self) -> dict[str, Any]:
        """Rates seen from the loop, the workers and how busy they are, and what holds the loop up."""
        figures = super().stats()
        if self._leaves_out:
            figures["skipped"] = self._skipped
        if self._figures is not None:
            figures |= self._figures()
        return {**figures, **self._crew.figures(self._clock.epoch_wait_share)}

    def close(self) -> None:
        super().close()
        self._finalizer()

    def _begin(self, steps: Iterator[Step]) -> None:
        self._mover.stop()
        self._given = deque()
        self._there = deque()
        batches = running(self._crew.legs, _requests(steps, self._given, self.order, keyed=self._keyed))
        self._mover.start(_parted(batches, self._there) if self._told else batches)

    def _paused(self) -> None:
        self._crew.pause()

    def _went_on(self) -> None:
        self._crew.go_on()

    def _next(self) -> tuple[Step, Any]:
        batch = self._mover.next()
        waited = self._mover.waited_seconds
        self._clock.waited(waited)
        step = self._given.popleft()
        self._crew.saw(len(step.indices), waited)
        there = self._there.popleft() if self._told else None
        if self._leaves_out:
            self._skipped += len(step.indices) - samples_in(batch)
            if batch is None:
                return self._without_any(step)
        if there is not None:
            step = replace(step, indices=step.indices[there])
        return step, self._augment(batch, step.epoch, torch.from_numpy(step.indices))

    def _without_any(self, step: Step) -> tuple[Step, Any]:
        """Of a step whose samples were all left out: nothing, unless other ranks wait for this one to take it, too."""
        if self.order.world == 1 or not isinstance(self._dataset, VideoClips):
            return step, NOTHING
        batch, number = self._dataset.instead_of(step.epoch, int(step.indices[0]))
        moved = map_tensors(lambda tensor: tensor.to(self._device), batch)
        step = replace(step, indices=np.array([number], np.int64))
        return step, self._augment(moved, step.epoch, torch.from_numpy(step.indices))


def _parted(batches: Iterator[Any], there: deque[NDArray[np.bool_]]) -> Iterator[Any]:
    """Batches alone; which samples they have stays on the host."""
    for pixels, labels, given in batches:
        there.append(given.numpy())
        yield pixels if labels is None else (pixels, labels)


def running(legs: Legs, stream: Iterator[Request]) -> Iterator[Any]:
    """The legs from a stream's beginning: whoever takes the first batch starts the workers."""
    yield from legs.begin(stream)


def shut(mover: Mover, legs: Legs | None) -> None:
    """First the thread that uses the legs, then they."""
    if legs is not None:
        legs.lasts = False
    mover.stop(patience=_PATIENCE_SECONDS)
    if legs is not None:
        legs.close()


def _requests(steps: Iterator[Step], given: deque[Step], order: Order, *, keyed: bool) -> Iterator[Request]:
    """`keyed`: the data set draws from (epoch, number), not from random numbers of its worker."""
    for step in steps:
        given.append(step)
        indices = step.indices.tolist()
        if keyed:
            indices = [(step.epoch, number) for number in indices]
        yield Request(indices, batch_seed(order.seed, step.epoch, step.position, order.rank))
