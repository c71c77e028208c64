"""Labels looked at on the host, on their way to a GPU, where one out of range ends the process (a device-side assert).

A feed shows its batches from the thread that fetches, ahead of the step. How many classes there are, and which part of
a batch is the target, is known after the first step; what was shown before then waits for that.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.feed.base import Feed
from fulltilt.train.augmenting import LoopAugmentation
from fulltilt.train.step.roles import Objective


class LabelCheck:
    """Of one feed; its first batch is the step's to check."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._where: int | str | None = None
        self._shown: list[Any] = []
        self._lock = threading.Lock()

    def look(self, batch: Any) -> None:
        """Shown by the feed; raises InputError in the batch's place."""
        with self._lock:
            if self._where is None:
                self._shown.append(batch)
                return
        self._check(batch)

    def know(self, where: int | str) -> None:
        """The first step went well, and its target was there in the batch: number or key."""
        if self._where is not None:
            return
        with self._lock:
            self._where, shown, self._shown = where, self._shown, []
        for batch in shown:
            self._check(batch)

    def _check(self, batch: Any) -> None:
        try:
            target = batch[self._where]
        except (IndexError, KeyError, TypeError):
            return  # a batch of another make than the first: the step will say so
        self._objective.check_labels(target)


def watched(
    source: Feed, objective: Objective, device: torch.device, augment: LoopAugmentation | None
) -> LabelCheck | None:
    """A check of a feed's labels; None where it is not needed or can't be made.

    On the CPU the loss itself says that a label is out of range. A function of the batch may put another thing in the
    target's place.
    """
    functions = [source.augmentation, None if augment is None else augment.function]
    if device.type != "cuda" or not all(found is None or isinstance(found, GPUAugmentation) for found in functions):
        return None
    check = LabelCheck(objective)
    return check if source.inspect_with(check.look) else None
