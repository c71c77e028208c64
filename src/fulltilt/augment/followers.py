"""Modules that follow the fused pass: Kornia's, which take masks along, and anything else that takes images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fulltilt.errors import InputError


def follow(modules: Iterable[nn.Module], images: Tensor, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Images frames × C × H × W and masks frames × H × W through each module in turn; masks keep their dtype."""
    for module in modules:
        if masks is not None and takes_masks(module):
            images, masks = _kornia(module, images, masks)
        else:
            out = module(images)
            if masks is not None and out.shape[-2:] != images.shape[-2:]:
                raise InputError(
                    f"{type(module).__name__} changed the images' size from {tuple(images.shape[-2:])} to "
                    f"{tuple(out.shape[-2:])} and knows nothing of the masks: use a Kornia module, or `size`"
                )
            images = out
    return images, masks


def takes_masks(module: nn.Module) -> bool:
    """One of Kornia's, which moves them as it moves the images."""
    return any(base.__module__.startswith("kornia.") for base in type(module).__mro__)


def _kornia(module: Any, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """One Kornia module with the same parameters for images and masks, masks by the nearest pixel."""
    from kornia.augmentation import AugmentationSequential
    from kornia.constants import DataKey

    if not isinstance(module, AugmentationSequential):
        module = AugmentationSequential(
            module,
            data_keys=["input", "mask"],
            extra_args={DataKey.MASK: {"resample": "nearest", "align_corners": None}},
        )
    # Kornia turns masks into the images' type, and bfloat16 holds whole numbers up to 256 only. So each byte of a label
    # goes as a channel of its own; the nearest pixel brings them all, and together they are the label again.
    planes = masks.contiguous()[..., None].view(torch.uint8).movedim(-1, 1)
    out, moved = module(images, planes.to(images.dtype if images.is_floating_point() else torch.float32))
    return out, moved.round().to(torch.uint8).movedim(1, -1).contiguous().view(masks.dtype)[..., 0]
