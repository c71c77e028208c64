"""A loader's images handed over as bytes, and made floats where they are used: on the GPU.

    worker     dataset[i]: its transforms stop before ToTensor, Normalize ─► Unfinished ─► default_collate ─► bytes
    training   next(loader): a tensor like any other; `images.to(device)` sends the bytes and looks the floats up there

A quarter of the bytes is joined, shared, pinned and copied, and the workers are spared the arithmetic. The random draws
are the script's own, and the floats are those that its transforms make, bit for bit: a setting of level exact.

The table is made by the transforms themselves, of an image that has all 256 bytes in each channel, and compared with
what they make of the first real image: where they differ, the transforms go on as they were. Left alone are loaders
without workers (the data set there is the script's own, and is not to be changed), those that collate in a way of their
own, and, from the next epoch on, those whose images the script does not send to a GPU.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

from fulltilt.launch.apply.chains import tails

Note = Callable[[str], None]

_VARIABLE = "FULLTILT_BYTES"
"""In the environment of workers whose loader's images are handed over as bytes: its number."""
_MOST_FINISHED = 16
"""Batches that the loop may make floats of itself, until the workers do it again."""


def install(note: Note, *, leave: Callable[[Any], bool] = lambda _: False) -> None:
    """`leave` says of a loader that somebody else sees to its transforms."""
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch

    numbers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
    count = itertools.count()

    def number_of(loader: Any) -> str:
        return numbers[loader] if loader in numbers else numbers.setdefault(loader, str(next(count)))

    DataLoader.__iter__ = _iterating(DataLoader.__iter__, leave, number_of, note)  # type: ignore[method-assign]
    fetch._BaseDatasetFetcher.__init__ = _fetching(fetch._BaseDatasetFetcher.__init__)  # type: ignore[method-assign]


def tail_names(loader: Any) -> tuple[str, ...]:
    """Of the transforms that would be done on the GPU; empty where the loader is to be left alone."""
    from torch.utils.data import IterableDataset, default_collate

    if isinstance(loader.dataset, IterableDataset) or loader.collate_fn is not default_collate:
        return ()
    found = tails(loader.dataset)
    return tuple(type(member).__name__ for member in found[0].tail) if found else ()


def _iterating(
    original: Callable[..., Any], leave: Callable[[Any], bool], number_of: Callable[[Any], str], note: Note
) -> Callable[..., Any]:
    from fulltilt.launch.apply.unfinished import uses_of

    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        if not tail_names(self) or leave(self):
            return original(self)
        if self.num_workers == 0:
            note("bytes: left alone where the loader has no workers")
            return original(self)
        number = number_of(self)
        uses = uses_of(number)
        # Workers that live on go on as they began.
        if self._iterator is None and uses.finished > max(uses.sent, _MOST_FINISHED):
            note("bytes: left alone where the script uses images on the CPU")
            return original(self)
        os.environ[_VARIABLE] = number  # workers inherit it, forked or spawned
        try:
            return original(self)
        finally:
            del os.environ[_VARIABLE]

    return iterate


def _fetching(made: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(made)
    def init(self: Any, dataset: Any, *rest: Any) -> None:
        from torch.utils.data import get_worker_info

        number = os.environ.get(_VARIABLE)
        if number is not None and get_worker_info() is not None:
            from torch.utils.data._utils.collate import default_collate_fn_map

            from fulltilt.launch.apply.ending_in_bytes import Ending
            from fulltilt.launch.apply.unfinished import Unfinished, hand_over, join

            default_collate_fn_map[Unfinished] = join
            hand_over(number)
            for place in tails(dataset):
                vars(place.owner)[place.name] = Ending(place)
        made(self, dataset, *rest)

    return init
