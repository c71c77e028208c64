"""Whatever gives batches, as a feed: on the device ahead of the step, with a place that can be saved."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fulltilt.errors import InputError
from fulltilt.feed.base import Feed
from fulltilt.feed.build import feed
from fulltilt.feed.mover import Mover
from fulltilt.feed.structure import samples_in
from fulltilt.train.ranks.shared import share


def as_feed(loader: Any, device: torch.device, *, name: str, seed: int = 0, beside: Feed | None = None) -> Feed:
    """A feed as it is; a DataLoader or any iterable of batches behind one.

    Args:
        seed: of the order in which a DataLoader's samples are shared out among several processes.
        beside: training's, where this one is for validation.
    """
    shared = share(loader, device, name=name, seed=seed)
    if shared is not None:
        found = shared
    elif isinstance(loader, Feed):
        found = loader
    elif isinstance(loader, DataLoader):
        found = feed(loader, device=device)
    elif isinstance(loader, Iterable) and not isinstance(loader, str | bytes | Mapping):
        found = IterableFeed(loader, device)
    else:
        raise InputError(
            f"{name} is {type(loader).__name__}; expected a DataLoader, a fulltilt feed or an iterable of batches"
            + "; a data set becomes one with DataLoader(data, batch_size=32, shuffle=True)"
            * isinstance(loader, Dataset)
        )
    if beside is not None:
        _check_classes(beside.classes or [], found.classes or [], name=name)
    if batches(found) == 0:
        raise InputError(f"{name} yields nothing: it has 0 batches; is the data set empty, or drop_last too strict?")
    return found


def _check_classes(trained: list[str], given: list[str], *, name: str) -> None:
    """A class that validation lacks shifts the numbers of those behind it, and accuracy falls for no reason."""
    numbers = {each: number for number, each in enumerate(trained)}
    other = [(each, number) for number, each in enumerate(given) if numbers.get(each) != number]
    if not trained or not other:
        return
    each, number = other[0]
    there = f"has it as {numbers[each]}" if each in numbers else "has no such class"
    raise InputError(
        f"{name} numbers its classes otherwise than train_loader: {each!r} is {number}, training {there}. Give "
        "the source for validation the classes of training: ImageFiles(…, classes=train_files.classes)"
    )


def batches(source: Feed) -> int | None:
    """Batches in an epoch, where that is known."""
    try:
        return len(source)
    except TypeError:
        return None


class IterableFeed(Feed):
    """Any iterable of batches. One that can't be iterated twice (a generator) lasts for one epoch."""

    def __init__(self, source: Iterable[Any], device: torch.device) -> None:
        super().__init__()
        self._source = source
        self._batches = self._taken = 0
        """Of this epoch, and in all."""
        self._resumes = False
        # On the CPU a thread that fetches ahead would draw its random numbers in between those of the step.
        self._mover = Mover(device, depth=2, ahead=1) if device.type == "cuda" else None
        if self._mover is not None:
            self._finalizer = weakref.finalize(self, Mover.stop, self._mover)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # TypeError where there is none, as for any iterable

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        seen = self._batches if self._resumes else 0
        if self._batches and not self._resumes:
            self._epoch += 1
        self._batches, self._resumes = seen, False
        begun = iter(self._source)
        passed = max(0, seen - self._taken) if begun is self._source else seen  # an iterator does not begin anew
        self._taken += passed
        iterator: Iterator[Any] = islice(begun, passed, None)
        if self._mover is not None:
            self._mover.start(iterator)
        while True:
            started = time.perf_counter()
            try:
                batch = next(iterator) if self._mover is None else self._mover.next()
            except StopIteration:
                break
            self._clock.waited(self._mover.waited_seconds if self._mover else time.perf_counter() - started)
            self._batches, self._taken = self._batches + 1, self._taken + 1
            self._clock.gave(samples_in(batch))
            yield batch
        self._epoch, self._batches = self._epoch + 1, 0

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        if self._mover is None:
            return False
        self._mover.inspect = look
        return True

    def set_epoch(self, epoch: int) -> None:
        self._epoch, self._batches, self._resumes = epoch, 0, False
        tell = getattr(self._source, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the batches before it are made again and passed over."""
        if "batches" not in state:
            raise InputError(
                f"the saved place ({', '.join(state)}) is not that of an iterable of batches: use the loader or feed "
                "that it was saved with"
            )
        self.set_epoch(int(state["epoch"]))
        self._batches = int(state["batches"])
        self._resumes = self._batches > 0

    def close(self) -> None:
        super().close()
        if self._mover is not None:
            self._finalizer()


def check_batch(batch: Any, *, name: str) -> None:
    """The first batch, before a step is made of it."""
    if not isinstance(batch, tuple | list):
        raise InputError(
            f"{name} gives {type(batch).__name__}; a batch is a tuple (*inputs, target): let the loader's collate "
            "function make one, such as lambda samples: (images, labels)"
        )
    if not batch or not isinstance(batch[0], torch.Tensor) or not batch[0].dim():
        found = "nothing" if not batch else type(batch[0]).__name__
        found = "a tensor of no dimension" if found == "Tensor" else found
        raise InputError(
            f"{name} gives batches that begin with {found}; expected a tensor of samples; several inputs "
            "stand side by side, (first, second, target), or in a mapping"
        )
    if not len(batch[0]):
        raise InputError(f"{name} gives a batch of 0 samples (shape {tuple(batch[0].shape)})")
