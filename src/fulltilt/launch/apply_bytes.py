"""A loader's images handed over as bytes, and made floats where they are used: on the GPU.

    worker     dataset[i]: its transforms stop before ToTensor, Normalize ─► Unfinished ─► default_collate ─► bytes
    training   next(loader): a tensor like any other; `images.to(device)` sends the bytes and looks the floats up there

A quarter of the bytes is joined, shared, pinned and copied, and the workers are spared the arithmetic. The random draws
are the script's own, and the floats are those that its transforms make, bit for bit: a setting of level exact.

The table is made by the transforms themselves, of an image that has all 256 bytes in each channel, and compared with
what they make of the first real image: where they differ, the transforms go on as they were. Left alone are loaders
without workers (the data set there is the script's own, and is not to be changed), and those that collate in a way of
their own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from fulltilt.launch.chains import tails

Note = Callable[[str], None]

_VARIABLE = "FULLTILT_BYTES"
"""In the environment of workers whose loader's images are handed over as bytes."""


def install(note: Note, *, leave: Callable[[Any], bool] = lambda _: False) -> None:
    """`leave` says of a loader that somebody else sees to its transforms."""
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch

    DataLoader.__iter__ = _iterating(DataLoader.__iter__, leave, note)  # type: ignore[method-assign]
    fetch._BaseDatasetFetcher.__init__ = _fetching(fetch._BaseDatasetFetcher.__init__)  # type: ignore[method-assign]


def tail_names(loader: Any) -> tuple[str, ...]:
    """Of the transforms that would be done on the GPU; empty where the loader is to be left alone."""
    from torch.utils.data import IterableDataset, default_collate

    if isinstance(loader.dataset, IterableDataset) or loader.collate_fn is not default_collate:
        return ()
    found = tails(loader.dataset)
    return tuple(type(member).__name__ for member in found[0].tail) if found else ()


def _iterating(original: Callable[..., Any], leave: Callable[[Any], bool], note: Note) -> Callable[..., Any]:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        if not tail_names(self) or leave(self):
            return original(self)
        if self.num_workers == 0:
            note("bytes: left alone where the loader has no workers")
            return original(self)
        os.environ[_VARIABLE] = "1"  # workers inherit it, forked or spawned
        try:
            return original(self)
        finally:
            del os.environ[_VARIABLE]

    return iterate


def _fetching(made: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(made)
    def init(self: Any, dataset: Any, *rest: Any) -> None:
        from torch.utils.data import get_worker_info

        if os.environ.get(_VARIABLE) and get_worker_info() is not None:
            from torch.utils.data._utils.collate import default_collate_fn_map

            from fulltilt.launch.ending_in_bytes import Ending
            from fulltilt.launch.unfinished import Unfinished, hand_over, join

            default_collate_fn_map[Unfinished] = join
            hand_over()
            for place in tails(dataset):
                vars(place.owner)[place.name] = Ending(place)
        made(self, dataset, *rest)

    return init
