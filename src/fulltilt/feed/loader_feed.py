"""The feeds of somebody's own data set or DataLoader: their samples, torch's workers, our way to the device."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, OrderedFeed
from fulltilt.feed.mover import Mover
from fulltilt.feed.order import Order, Step
from fulltilt.feed.structure import Augmenter, samples_in

Augment = Callable[..., Any]


class DatasetFeed(OrderedFeed):
    """A map-style data set in our own order, so that it can be resumed anywhere."""

    def __init__(
        self,
        dataset: Dataset[Any],
        order: Order,
        *,
        device: torch.device,
        workers: int,
        depth: int,
        ahead: int,
        augment: Augment | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(order)
        self._steps = _Steps()
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=self._steps,
            num_workers=workers,
            collate_fn=collate,
            prefetch_factor=depth if workers else None,
            persistent_workers=workers > 0,
        )
        self.augmentation, self._augment = augment, Augmenter(augment)
        self._mover = Mover(device, depth=2, ahead=ahead)
        self._finalizer = weakref.finalize(self, Mover.stop, self._mover)

    def close(self) -> None:
        super().close()
        self._finalizer()
        self._loader._iterator = None  # its workers end with it

    def _begin(self, steps: Iterator[Step]) -> None:
        self._mover.stop()
        self._steps.restart(steps)
        self._mover.start(iter(self._loader))

    def _next(self) -> tuple[Step, Any]:
        started = time.perf_counter()
        batch = self._mover.next()
        self._clock.waited(time.perf_counter() - started)
        step = self._steps.given.popleft()
        return step, self._augment(batch, step.epoch, torch.from_numpy(step.indices))


class _Steps:
    """The order's steps as a batch sampler without an end, so that workers go on from one epoch into the next."""

    def __init__(self) -> None:
        self._steps: Iterator[Step] = iter(())
        self.given: deque[Step] = deque()
        """What the loader has asked for and the loop has not seen yet."""

    def restart(self, steps: Iterator[Step]) -> None:
        self._steps, self.given = steps, deque()

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps:
            self.given.append(step)
            yield step.indices.tolist()


class LoaderFeed(Feed):
    """An existing DataLoader, kept as it is: sampler, collate, workers, and the order that a plain loop would see."""

    def __init__(
        self, loader: DataLoader[Any], *, device: torch.device, ahead: int, augment: Augment | None = None
    ) -> None:
        super().__init__()
        self.augmentation = augment
        self._loader, self._augment = loader, Augmenter(augment)
        self._batches = 0
        self._resumes = False
        self._random: Tensor | None = None
        """The state of the loader's generator when the epoch began: what its order follows from."""
        self._mover = Mover(device, depth=2, ahead=ahead)
        self._finalizer = weakref.finalize(self, Mover.stop, self._mover)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        self._mover.stop()
        if self._resumes:
            iterator = self._rest()
        else:
            self._epoch, self._batches = self._epoch + (self._batches > 0), 0
            self._random = self._generator_state()
            iterator = self._first_drawn(iter(self._loader))
        self._resumes = False
        self._mover.start(iterator)
        while True:
            started = time.perf_counter()
            try:
                batch = self._mover.next()
            except StopIteration:
                break
            self._clock.waited(time.perf_counter() - started)
            self._batches += 1
            self._clock.gave(samples_in(batch))
            yield self._augment(batch, self._epoch)
        self._epoch, self._batches, self._random = self._epoch + 1, 0, None

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch's beginning; tells the sampler, if it wants to know."""
        self._epoch, self._batches, self._resumes = epoch, 0, False
        for sampler in (self._loader.sampler, self._loader.batch_sampler):
            tell: Callable[[int], None] | None = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batches": self._batches, "random": self._random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, in a loader of the same batch size; the samples given out already are not loaded again."""
        self.set_epoch(int(state["epoch"]))
        self._batches, self._random = int(state["batches"]), state["random"]
        self._resumes = self._random is not None

    def close(self) -> None:
        super().close()
        self._finalizer()

    def _first_drawn(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Without workers the sampler draws its order at the first batch: have it do so here, not in the thread."""
        if self._loader.num_workers or isinstance(self._loader.dataset, IterableDataset):
            return iterator
        first = next(iterator, None)
        return iter(()) if first is None else _chain(first, iterator)

    def _rest(self) -> Iterator[Any]:
        """The epoch's remaining batches: its order drawn again as it was, what has been seen left out."""
        now = self._generator_state()
        self._set_generator_state(self._random)
        try:
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)  # as iter(loader) does first
            if isinstance(self._loader.dataset, IterableDataset):
                return islice(iter(self._loader), self._batches, None)
            if self._loader.batch_sampler is None:
                raise InputError("a DataLoader with batch_size=None can't be resumed in the middle of an epoch")
            left = list(self._loader.batch_sampler)[self._batches :]
        finally:
            self._set_generator_state(now)
        loader = self._loader
        return iter(
            DataLoader(
                loader.dataset,
                batch_sampler=left,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
                generator=torch.Generator(),
            )
        )

    def _generator_state(self) -> Tensor:
        generator = self._loader.generator
        return torch.get_rng_state() if generator is None else generator.get_state()

    def _set_generator_state(self, state: Tensor | None) -> None:
        if state is None:
            return
        generator = self._loader.generator
        torch.set_rng_state(state) if generator is None else generator.set_state(state)


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
