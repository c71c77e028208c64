"""The feed of a map-style data set: its samples and collate, our order, workers whose number can change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fulltilt.errors import InputError
from fulltilt.feed.base import NOTHING, OrderedFeed, when_forgotten
from fulltilt.feed.clips import VideoClips
from fulltilt.feed.crew import Crew
from fulltilt.feed.hosting import Hosting
from fulltilt.feed.leg import Work
from fulltilt.feed.legs import Legs
from fulltilt.feed.mover import Mover
from fulltilt.feed.order import Order, Step
from fulltilt.feed.shelf import Request, batch_seed
from fulltilt.feed.splits import Split
from fulltilt.feed.structure import Augmenter, samples_in
from fulltilt.machine.decision import Decision


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
    ) -> None:
        super().__init__(order)
        chosen = hosting.value
        self._keyed = bool(getattr(dataset, "takes_epoch", False))
        self._leaves_out = bool(getattr(dataset, "leaves_out", False))
        self._skipped = 0
        self._figures: Callable[[], dict[str, Any]] | None = None
        if isinstance(dataset, VideoClips):
            self._figures = dataset.figures
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
        self.split: Decision[Split] | None = None
        """Of videos: decoders and threads of each that the workers began with, and why."""
        self._finalizer = when_forgotten(self, shut, self._mover, self._crew.legs)

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
        self._mover.start(running(self._crew.legs, _requests(steps, self._given, self.order, keyed=self._keyed)))

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
        if self._leaves_out:
            self._skipped += len(step.indices) - samples_in(batch)
            if batch is None:
                return step, NOTHING
        return step, self._augment(batch, step.epoch, torch.from_numpy(step.indices))


def running(legs: Legs, stream: Iterator[Request]) -> Iterator[Any]:
    """The legs from a stream's beginning: whoever takes the first batch starts the workers."""
    yield from legs.begin(stream)


def shut(mover: Mover, legs: Legs | None) -> None:
    """First the thread that uses the legs, then they."""
    mover.stop()
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
