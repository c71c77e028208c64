"""Which of a batch's values is the target, and which loss fits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fulltilt.errors import InputError

Loss = Callable[[Any, Any], Tensor]


def split(batch: tuple[Any, ...], target: int | Literal["auto"]) -> tuple[tuple[Any, ...], Any]:
    """Inputs and target. (images, masks, features): the second is the target when it alone has the images' sides."""
    if len(batch) < 2:
        raise InputError(f"a batch is (*inputs, target), found {len(batch)} value(s)")
    place = target_place(batch) if target == "auto" else target
    if not -len(batch) <= place < len(batch):
        raise InputError(f"target={place} is not one of the batch's {len(batch)} values")
    place %= len(batch)
    return batch[:place] + batch[place + 1 :], batch[place]


def target_place(batch: tuple[Any, ...]) -> int:
    """Where the target is when nobody said."""
    if len(batch) == 3 and all(isinstance(part, Tensor) for part in batch):
        sides = batch[0].shape[-2:]
        masks, last = batch[1], batch[2]
        if batch[0].dim() >= 4 and masks.dim() >= 3 and masks.shape[-2:] == sides:
            if last.dim() < 3 or last.shape[-2:] != sides:
                return 1
    return len(batch) - 1


def default_loss(outputs: Any, target: Any) -> Loss:
    """Integer targets: cross entropy; of the outputs' shape and floating: BCE with logits."""
    if isinstance(target, Tensor) and not target.is_floating_point() and target.dtype != torch.bool:
        return functional.cross_entropy
    return functional.binary_cross_entropy_with_logits
