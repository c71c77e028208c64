"""Batches made ready in the background, while the device works on the one before.

batches ─► threads: the user's function ─► on a GPU: pinned, copied ahead on a stream of its own ─► train_step
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch

from fulltilt.assist.processor import AsyncDataProcessor
from fulltilt.feed.mover import Mover


class Prepared:
    """One way through the batches; what is under way when the loop is left is given up."""

    def __init__(
        self,
        batches: Iterable[Any],
        prepare: Callable[[Any], Any] | None,
        *,
        device: torch.device,
        num_workers: int | Literal["auto"],
        note: Callable[[float, float], None],
    ) -> None:
        """
        Args:
            note: hears how long the loop waited for a batch, and what the threads spend on one.
        """
        self._note, self._given = note, 0
        self._processor = AsyncDataProcessor(num_workers, preprocess=prepare)
        self._iterator = _run(self._processor, batches, device)  # knows nothing of this object: both go with the loop

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        batch = next(self._iterator)
        self._given += 1
        self._note(time.perf_counter() - began, self._processor.stats().busy_seconds / self._given)
        return batch


def _run(processor: AsyncDataProcessor, batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    with processor:
        ready = processor.map(batches)
        if device.type != "cuda":
            yield from ready
            return
        mover = Mover(device, depth=2, ahead=1)
        mover.start(ready)
        try:
            while True:
                try:
                    batch = mover.next()
                except StopIteration:
                    return
                yield batch
        finally:
            mover.stop()
