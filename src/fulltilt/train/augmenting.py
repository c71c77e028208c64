"""Augmentation inside the loop: in training as set, in validation only what is not random (size, scale, dtype)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fulltilt.augment import GPUAugmentation
from fulltilt.augment.keyed import keep_ranks_apart
from fulltilt.errors import InputError
from fulltilt.feed.base import Feed, OrderedFeed
from fulltilt.feed.structure import Augmenter
from fulltilt.machine.ranks import rank, several

Augmentation = Callable[..., Any]


class LoopAugmentation:
    """An augmentation that the loop applies to the batches of one feed."""

    def __init__(self, augmentation: Augmentation, source: Feed, *, training: bool, only_bytes: bool = False) -> None:
        """
        Args:
            only_bytes: leave alone what is no longer as it was read: somebody else has made numbers of its pixels.
        """
        self.function = augmentation
        self._only_bytes = only_bytes
        self.takes_tuples = isinstance(augmentation, GPUAugmentation)
        """Of mappings it could not tell what are images; a function of the batch gets it as it is."""
        self._training = training
        self._ordered = source if isinstance(source, OrderedFeed) else None
        self._epoch = 0
        self._augmenter = Augmenter(augmentation, epoch=0)

    def begin(self, epoch: int, state: dict[str, Any] | None = None) -> None:
        """An epoch begins; with a saved state, in its middle."""
        if isinstance(self.function, nn.Module):
            self.function.train(self._training)
        if not self._training:
            return
        self._epoch = epoch
        self._augmenter.begin(epoch)
        tell = getattr(self.function, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        if state is not None and isinstance(self.function, nn.Module):
            self.function.load_state_dict(state)
        if several():
            keep_ranks_apart(self.function, rank())

    def __call__(self, batch: Any) -> Any:
        if self._only_bytes and batch[0].dtype != torch.uint8:
            return batch
        index = None
        if self._ordered is not None and self._ordered.indices is not None:
            index = torch.from_numpy(self._ordered.indices)
        return self._augmenter(batch, self._epoch, index)

    def state_dict(self) -> dict[str, Any] | None:
        """Where the draws stand; a copy, for the module's own tensors go on."""
        return copy.deepcopy(self.function.state_dict()) if isinstance(self.function, nn.Module) else None


def for_training(augmentation: Augmentation | None, source: Feed, *, on: bool = True) -> LoopAugmentation | None:
    """None where there is none, or where the feed augments already; switched off, it is as in validation."""
    if augmentation is not None and (isinstance(augmentation, type) or not callable(augmentation)):
        found = f"the class {augmentation.__name__}" if isinstance(augmentation, type) else repr(augmentation)
        raise InputError(
            f"gpu_augmentation is {found}; expected a GPUAugmentation, such as StrongGPUAugmentation(), or a function "
            "of the batch"
        )
    if augmentation is None or augments(source):
        return None
    return LoopAugmentation(augmentation, source, training=True) if on else for_validation(augmentation, source, source)


def for_validation(augmentation: Augmentation | None, source: Feed, training: Feed) -> LoopAugmentation | None:
    """Sizes and scale must be those of training; a GPUAugmentation in `eval()` mode does that and nothing else.

    Where it is training's feed that augments, pixels that validation's feed gives as they were read are prepared alike.
    """
    own = source.augmentation
    if isinstance(own, GPUAugmentation) and own.training:
        raise InputError(
            "val_loader augments at random: its GPUAugmentation is in training mode. Give it one of its own, in eval() "
            "mode: feed(…, augment=copy.deepcopy(augment).eval())"
        )
    if own is not None and not (isinstance(own, GPUAugmentation) and own.settings.normalize is None):
        return None
    only_bytes = not isinstance(augmentation, GPUAugmentation)
    wanted = augmentation
    if only_bytes and augments(training):
        wanted = training.augmentation
    if not isinstance(wanted, GPUAugmentation):
        return None
    # One of its own, for the mode is the module's; what comes after the pass, in training only, may not be copied.
    scaling = copy.deepcopy(wanted, {id(wanted.then): nn.ModuleList()}).eval()
    return LoopAugmentation(scaling, source, training=False, only_bytes=only_bytes)


def augments(source: Feed) -> bool:
    """Whether a feed augments; one of image files has an augmentation in `eval()` mode only to make them one size."""
    found = source.augmentation
    return found is not None and not (isinstance(found, nn.Module) and not found.training)


def describe(augmentation: Augmentation) -> str:
    """In one line."""
    if isinstance(augmentation, GPUAugmentation):
        return f"{type(augmentation).__name__}({augmentation.extra_repr()})"
    return getattr(augmentation, "__name__", type(augmentation).__name__)
