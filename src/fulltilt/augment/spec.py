"""What one call asks of the pass over the pixels: plain values, decided before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from fulltilt.augment.layout import Ops
from fulltilt.augment.settings import Settings


class Fill(IntEnum):
    """What lies beyond the border."""

    CONSTANT = 0
    REFLECT = 1
    EDGE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dials:
    """The numbers on the device that draws read, and that may change between two calls without compiling anything."""

    state: Tensor
    """Three int64: seed, epoch, the next sample's number."""
    full: Tensor
    """Settings vector at strength 1."""
    rest: Tensor
    """Settings vector at strength 0."""
    strength: Tensor
    """One float."""
    norm: Tensor | None
    """C × 2: what to multiply by and what to add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One call, apart from its tensors."""

    ops: Ops
    out_h: int
    out_w: int
    dtype: torch.dtype
    channels_last: bool
    fill_mode: Fill
    fill: float
    mask_fill: int
    erase_value: float
    crop_padding: int
    eval_crop: float
    normalize: bool
    counts: bool
    """Samples are numbered by the running index, which this call moves on."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        ops: Ops,
        out_size: tuple[int, int],
        dtype: torch.dtype,
        channels_last: bool,
        counts: bool,
    ) -> Spec:
        constant = not isinstance(settings.fill, str)
        return cls(
            ops=ops,
            out_h=out_size[0],
            out_w=out_size[1],
            dtype=dtype,
            channels_last=channels_last,
            fill_mode=Fill.CONSTANT if constant else Fill[str(settings.fill).upper()],
            fill=float(settings.fill) if constant else 0.0,
            mask_fill=settings.mask_fill,
            erase_value=settings.erase_value,
            crop_padding=settings.crop_padding,
            eval_crop=settings.eval_crop or 0.0,
            normalize=settings.normalize is not None,
            counts=counts,
        )
