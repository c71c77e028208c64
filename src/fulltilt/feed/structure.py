"""Batches of any shape: their samples, and their augmentation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fulltilt.augment import GPUAugmentation
from fulltilt.augment.keyed import keep_ranks_apart
from fulltilt.errors import InputError
from fulltilt.machine.ranks import rank, several
from fulltilt.nested import map_tensors, refilled

log = logging.getLogger("fulltilt.feed")

_SLACK = 0.5
"""How far floats may lie outside [0, 1]: a resize by splines overshoots, normalised images lie beyond."""


def samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.size(0) if tensor.dim() else 1)  # a nested tensor has no len()
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
        if isinstance(augment, type) or not (augment is None or callable(augment)):
            found = f"the class {augment.__name__}" if isinstance(augment, type) else repr(augment)
            raise InputError(
                f"augment is {found}; expected a GPUAugmentation, such as GPUAugmentation(), or a function"
            )
        self._augment = augment
        self._set_epoch: Callable[[int], None] | None = getattr(augment, "set_epoch", None)
        self._epoch = epoch
        self._looked = False

    def __call__(self, batch: Any, epoch: int, index: Tensor | None = None) -> Any:
        """The batch, augmented: images and, where another part has their height and width, masks.

        A GPUAugmentation is told the samples' numbers, where they are known: so an epoch that is resumed, or shared
        out otherwise, is augmented alike. Anything else is given the whole batch and returns it.
        """
        if self._augment is None:
            return batch
        if epoch != self._epoch:
            self._begin(epoch)
        if not isinstance(self._augment, GPUAugmentation):
            made = self._augment(batch)
            if made is None and batch is not None:
                raise InputError("the augmentation returned nothing: a function of the batch has to return the batch")
            return made
        if index is not None and len(index) != samples_in(batch):
            index = None  # a collate function has left samples out: which ones is not known
        if isinstance(batch, Tensor):
            self._look(batch, [])
            return self._augment(batch, index=index)
        if not isinstance(batch, tuple | list) or not batch or not isinstance(batch[0], Tensor):
            first = f" that begins with {type(batch[0]).__name__}" if isinstance(batch, tuple | list) and batch else ""
            raise InputError(
                f"a GPUAugmentation takes batches that begin with their images, found {type(batch).__name__}{first}; "
                "pass a function of the batch instead, such as lambda batch: {**batch, 'image': aug(batch['image'])}"
            )
        images, *rest = batch
        self._look(images, rest)
        moves = self._augment.moves
        alike = [place for place, part in enumerate(rest) if _lies_over(part, images)] if moves else []
        if len(alike) > 1:
            shapes = " and ".join(str(tuple(rest[place].shape)) for place in alike)
            raise InputError(
                f"beside the images a batch has {shapes}: a GPUAugmentation moves one part with them, their masks, and "
                "the others would no longer fit; pass a function of the batch instead"
            )
        if alike:
            images, rest[alike[0]] = self._augment(images, rest[alike[0]], index=index)
        else:
            images = self._augment(images, index=index)
        return refilled(batch, [images, *rest])

    def begin(self, epoch: int) -> None:
        """An epoch that the augmentation has been told of."""
        self._epoch = epoch

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        if self._set_epoch is not None:
            self._set_epoch(epoch)
        if several():
            keep_ranks_apart(self._augment, rank())

    def _look(self, images: Tensor, rest: list[Any]) -> None:
        """At the first batch: what would be wrong with all of them and nobody would see."""
        if self._looked:
            return
        self._looked = True
        if images.dim() >= 4:  # whatever else it is, it is no images
            _check_scale(images)
        stay = [tuple(part.shape) for part in rest if _is_plane(part) and not _lies_over(part, images)]
        if stay and isinstance(self._augment, GPUAugmentation) and self._augment.moves:
            log.warning(
                "the augmentation moves images of %s, and %s beside them stays as it is: only masks of their size go "
                "along. Boxes, points and masks of another size need a function of the batch that passes them on",
                tuple(images.shape),
                " and ".join(map(str, stay)),
            )


def _is_plane(part: Any) -> bool:
    """What may belong to places in an image."""
    return isinstance(part, Tensor) and part.dim() >= 3


def _lies_over(part: Any, images: Tensor) -> bool:
    """Whether it has the images' height and width, be its channel the last."""
    if not _is_plane(part):
        return False
    sides = {tuple(images.shape[-2:]), tuple(images.shape[-3:-1])}
    last = part.dim() == images.dim() and part.shape[-1] == 1
    return tuple(part.shape[-2:]) in sides or (last and tuple(part.shape[-3:-1]) in sides)


def _check_scale(images: Tensor) -> None:
    """Floats are cut to [0, 1]. The host waits for the device, once."""
    if not images.is_floating_point() or not images.numel():
        return
    low, high = (float(value) for value in images.detach().aminmax())
    if low < -_SLACK or high > 1 + _SLACK:
        advice = "divide by 255" if low >= 0 else "leave normalising to it, with normalize='imagenet' or (mean, std)"
        raise InputError(
            f"a GPUAugmentation takes float images from 0 to 1 and cuts values to that; found {low:g} to {high:g}: "
            f"{advice}"
        )
