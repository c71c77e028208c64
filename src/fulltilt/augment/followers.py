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
        if masks is not None and _is_kornia(module):
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


def _is_kornia(module: nn.Module) -> bool:
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
    # float64 holds every label up to 2^53 exactly; 8-bit and 16-bit ones need no more than float32.
    wide = torch.float64 if masks.dtype in (torch.int64, torch.int32) else torch.float32
    out, labels = module(images, masks[:, None].to(wide).to(images.dtype if wide == torch.float32 else wide))
    return out, labels[:, 0].round().to(masks.dtype)
