"""Batches of any shape: tensors in tuples, lists, named tuples and mappings, however deep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from torch import Tensor

from fulltilt.augment import GPUAugmentation
from fulltilt.errors import InputError

Part = TypeVar("Part")

_SLACK = 0.5
"""How far floats may lie outside [0, 1]: a resize by splines overshoots, normalised images lie beyond."""


def map_tensors(change: Callable[[Tensor], Any], batch: Any) -> Any:
    """The same structure with every tensor changed; what is neither tensor nor container stays as it is."""
    return map_parts(Tensor, change, batch)


def map_parts(kind: type[Part], change: Callable[[Part], Any], batch: Any) -> Any:
    """The same structure with everything of a kind changed."""
    if isinstance(batch, kind):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_parts(kind, change, part) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_parts(kind, change, part) for part in batch)
    if isinstance(batch, Mapping):
        changed = {key: map_parts(kind, change, part) for key, part in batch.items()}
        if isinstance(batch, MutableMapping):  # a copy keeps what a constructor would have to be told: a default, say
            like = copy.copy(batch)
            for key, part in changed.items():  # `update` is what output classes of model libraries refuse
                like[key] = part
            return like
        return type(batch)(changed)  # type: ignore[call-arg]
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

    def __init__(self, augment: Callable[..., Any] | None, *, epoch: int = -1) -> None:
        """
        Args:
            epoch: the one that it has been told of already.
        """
        self._augment = augment
        self._set_epoch: Callable[[int], None] | None = getattr(augment, "set_epoch", None)
        self._epoch = epoch
        self._looked = False

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
        if not self._looked:
            self._looked = True
            _check_scale(batch if isinstance(batch, Tensor) else next(iter(batch), None))
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


def _check_scale(images: Any) -> None:
    """Of the first batch, for which the host waits: floats are cut to [0, 1], which nobody would be told of."""
    if not isinstance(images, Tensor) or not images.is_floating_point() or not images.numel():
        return
    low, high = (float(value) for value in images.detach().aminmax())
    if low < -_SLACK or high > 1 + _SLACK:
        advice = "divide by 255" if low >= 0 else "leave normalising to it, with normalize='imagenet' or (mean, std)"
        raise InputError(
            f"a GPUAugmentation takes float images from 0 to 1 and cuts values to that; found {low:g} to {high:g}: "
            f"{advice}"
        )
