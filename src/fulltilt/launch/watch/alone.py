"""The loader's limit: the script's own training loader, iterated when nobody trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fulltilt.launch.watch.batches import samples
from fulltilt.launch.watch.replay import epoch_length

SECONDS = 3.0
MOST_SECONDS = 8.0
"""A loader that needs seconds for a batch is measured over what it gives until then."""
DRAIN_SECONDS = 2.0


def samples_per_second(loader: Any, iterator: Iterator[Any] | None) -> float | None:
    """Goes on where the script's loop stands, with `iterator`, and begins new epochs. None where it gives nothing more.

    Batches that lay ready are drained first. Workers that begin an epoch give their first batches all at once, after
    their start: those are left out on both sides, unless an epoch has hardly any others.
    """
    workers = int(loader.num_workers)
    ready = workers * int(loader.prefetch_factor or 0)
    unseen = int(getattr(loader, "batch_size", None) or 0)  # of a batch whose tensors can't be found
    short = epoch_length(loader) <= 2 * workers
    iterator = _drained(loader, iter(loader) if iterator is None else iterator, 0 if short else ready)
    count, spent, batches = 0, 0.0, 0
    skip = 0
    fresh = False
    began = time.perf_counter()
    while True:
        at = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            if fresh:  # an epoch without a batch: a generator that can be gone through once, say
                return count / spent if count and spent > 0 else None
            iterator = iter(loader)
            fresh = True
            skip = 0 if short else workers
            if short:
                spent += time.perf_counter() - at
            continue
        now = time.perf_counter()
        fresh = False
        if skip:
            skip -= 1
        else:
            count += samples(batch) or unseen
            spent += now - at
            batches += 1
        enough = spent >= SECONDS and batches % max(1, workers) == 0
        if (enough or now - began >= MOST_SECONDS) and spent > 0:
            return count / spent if count else None


def _drained(loader: Any, iterator: Iterator[Any], ready: int) -> Iterator[Any]:
    began = time.perf_counter()
    for _ in range(ready):
        if time.perf_counter() - began > DRAIN_SECONDS:
            break
        try:
            next(iterator)
        except StopIteration:
            iterator = iter(loader)
    return iterator
