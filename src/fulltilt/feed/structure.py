"""Batches of any shape: tensors in tuples, lists, named tuples and mappings, however deep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fulltilt.augment import GPUAugmentation
from fulltilt.errors import InputError


def map_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """The same structure with every tensor changed; what is neither tensor nor container stays as it is."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(change, part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(change, part) for part in batch)
    if isinstance(batch, Mapping):
        changed = {key: map_tensors(change, part) for key, part in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
    return batch


def samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(len(tensor) if tensor.dim() else 1)
        return tensor

    map_tensors(note, batch)
    return sizes[0] if sizes else 0


class Augmenter:
    """Applies `augment` to batches, and tells it of each new epoch if it wants to know."""

    def __init__(self, augment: Callable[..., Any] | None) -> None:
        self._augment = augment
        self._set_epoch: Callable[[int], None] | None = getattr(augment, "set_epoch", None)
        self._epoch = -1

    def __call__(self, batch: Any, epoch: int) -> Any:
        """The batch, augmented: images and, where the second part has their size, masks.

        Anything but a GPUAugmentation is given the whole batch and returns it.
        """
        if self._augment is None:
            return batch
        if epoch != self._epoch and self._set_epoch is not None:
            self._epoch = epoch
            self._set_epoch(epoch)
        if not isinstance(self._augment, GPUAugmentation) or isinstance(batch, Tensor):
            return self._augment(batch)
        if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], Tensor):
            raise InputError(
                f"a GPUAugmentation takes batches that begin with their images, found {type(batch).__name__}; "
                "pass a function of the batch instead, such as lambda batch: {**batch, 'image': aug(batch['image'])}"
            )
        images, *rest = batch
        sides = {tuple(images.shape[-2:]), tuple(images.shape[-3:-1])}
        if rest and isinstance(rest[0], Tensor) and rest[0].dim() >= 3 and tuple(rest[0].shape[-2:]) in sides:
            images, rest[0] = self._augment(images, rest[0])
        else:
            images = self._augment(images)
        return (images, *rest) if isinstance(batch, tuple) else [images, *rest]
