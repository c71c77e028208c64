"""Random draws of samples: whether there are any; and, for runs that are compared, such as depend on the sample only.

With draws tied to the sample, and those of collating to the batch, a run with four workers trains on what one without
does. In the run itself nothing is
tied: samples that draw are others with another number of workers. So it is looked whether they draw; and whether a
model does, whose draws are tied as well.
"""

from __future__ import annotations

import functools
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.launch.watch.watch import Watch

FIRST_LOOKS = 16
LOOK_EVERY = 32
"""Batches that are looked at in each process that makes them: the first, then one of so many. A look takes 0.1 ms."""

FIRST_CALLS = 32
"""Of outermost modules in training: the model's, loss functions' between them."""


class Looks:
    """Whether making a loader's batches moves a generator of this process: torch's, numpy's, Python's.

    One that a data set seeds for each sample itself is none of them: what it gives depends on nobody.
    """

    __slots__ = ("_made", "draws")

    def __init__(self) -> None:
        self.draws: bool | None = None
        """None before the first look."""
        self._made = 0

    def due(self) -> bool:
        """A batch is to be made: whether it is looked at. Once draws were seen, none is."""
        if self.draws:
            return False
        self._made += 1
        return self._made <= FIRST_LOOKS or self._made % LOOK_EVERY == 0

    def made(self, before: tuple[Any, ...]) -> None:
        """A batch that was looked at, with generators as `before` when it was begun."""
        self.draws = self.draws or moved(before, states())


def states() -> tuple[Any, ...]:
    """Of the generators that samples draw from without making one."""
    import torch

    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else pickle.dumps(numpy.random.get_state(legacy=False))
    return random.getstate(), of_numpy, torch.default_generator.get_state()


def moved(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    import torch

    numpys = None not in (before[1], after[1]) and before[1] != after[1]  # it may have been imported just now
    return numpys or before[0] != after[0] or not torch.equal(before[2], after[2])


def looked_at(watch: Watch, called: Callable[..., Any]) -> Callable[..., Any]:
    """The call of an outermost module; the first ones tell whether it draws from torch's own generators."""
    import torch

    left = FIRST_CALLS

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        trains = self.training and torch.is_grad_enabled()
        if not trains or watch.draws or left == 0 or _is_recording():
            return called(self, *args, **kwargs)
        left -= 1
        before = _generators()
        made = called(self, *args, **kwargs)
        watch.draws = not all(map(torch.equal, before, _generators()))
        return made

    return call


def _is_recording() -> bool:
    """A CUDA graph: its generator can't be asked meanwhile."""
    import torch

    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def _generators() -> list[Any]:
    """States of torch's own, which the host knows: no GPU is waited for."""
    import torch

    of_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return [one.get_state() for one in (torch.default_generator, *of_gpus)]


def tied(dataset: Any, seed: int) -> Any:
    """The dataset, with the generators of Python, numpy and torch seeded from each sample's index."""
    return dataset if hasattr(dataset, "__iter__") else TiedDataset(dataset, seed)


def tied_to_batch(fetched: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """A fetcher's `fetch`; what collating draws (Mixup, CutMix) depends on the samples that are in the batch."""

    @functools.wraps(fetched)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        with _drawing(~seed, possibly_batched_index):  # not as the first of its samples
            return fetched(self, possibly_batched_index)

    return fetch


class TiedDataset:
    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self._seed = seed
        if not getattr(dataset, "__getitems__", None):
            vars(self)["__getitems__"] = None  # torch asks for each by itself then

    def __getitem__(self, index: Any) -> Any:
        with _drawing(self._seed, index):
            return self.dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        with _drawing(self._seed, indices[0]):  # they are drawn for together: the first stands for all
            return self.dataset.__getitems__(indices)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


@contextmanager
def _drawing(seed: int, index: Any) -> Iterator[None]:
    """Afterwards the generators are as before: in the training process they are the training's too."""
    import torch

    number = (seed * 1_000_003 + _as_number(index)) % 2**32
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.get_rng_state(), None if numpy is None else numpy.random.get_state()
    random.seed(number)
    torch.default_generator.manual_seed(number)
    if numpy is not None:
        numpy.random.seed(number)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])


def _as_number(index: Any) -> int:
    try:
        return int(index)
    except (TypeError, ValueError):
        return sum(ord(letter) * (place + 1) for place, letter in enumerate(repr(index)))
