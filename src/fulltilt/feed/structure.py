"""Batches of any shape: their samples, and their augmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fulltilt.augment import GPUAugmentation
from fulltilt.errors import InputError
from fulltilt.nested import map_tensors


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

    def __init__(self, augment: Callable[..., Any] | None, *, epoch: int = -1) -> None:
        """
        Args:
            epoch: the one that it has been told of already.
        """
        self._augment = augment
        self._set_epoch: Callable[[int], None] | None = getattr(augment, "set_epoch", None)
        self._epoch = epoch

    def __call__(self, batch: Any, epoch: int, index: Tensor | None = None) -> Any:
        """The batch, augmented: images and, where the second part has their size, masks.

        A GPUAugmentation is told the samples' numbers, where they are known: so an epoch that is resumed, or shared
        out otherwise, is augmented alike. Anything else is given the whole batch and returns it.
        """
        if self._augment is None:
            return batch
        if epoch != self._epoch and self._set_epoch is not None:
            self._epoch = epoch
            self._set_epoch(epoch)
        if not isinstance(self._augment, GPUAugmentation):
            return self._augment(batch)
        if index is not None and len(index) != samples_in(batch):
            index = None  # a collate function has left samples out: which ones is not known
        if isinstance(batch, Tensor):
            return self._augment(batch, index=index)
        if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], Tensor):
            raise InputError(
                f"a GPUAugmentation takes batches that begin with their images, found {type(batch).__name__}; "
                "pass a function of the batch instead, such as lambda batch: {**batch, 'image': aug(batch['image'])}"
            )
        images, *rest = batch
        sides = {tuple(images.shape[-2:]), tuple(images.shape[-3:-1])}
        if rest and isinstance(rest[0], Tensor) and rest[0].dim() >= 3 and tuple(rest[0].shape[-2:]) in sides:
            images, rest[0] = self._augment(images, rest[0], index=index)
        else:
            images = self._augment(images, index=index)
        return (images, *rest) if isinstance(batch, tuple) else [images, *rest]
