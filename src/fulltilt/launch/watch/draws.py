"""Random draws that depend on the sample alone: with them, a run with four workers trains on what one without does."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def tied(dataset: Any, seed: int) -> Any:
    """The dataset, with the generators of Python, numpy and torch seeded from each sample's index."""
    return dataset if hasattr(dataset, "__iter__") else TiedDataset(dataset, seed)


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
