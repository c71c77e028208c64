"""Pictures to try things with: a disc, a square, a ring or a cross, somewhere on a noisy ground."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fulltilt.errors import InputError

KINDS = ("disc", "square", "ring", "cross")


def shapes(
    count: int = 1024, size: int = 32, *, target: Literal["class", "mask"] = "class", seed: int = 0
) -> tuple[Tensor, Tensor]:
    """8-bit pictures N×3×size×size, with the kind of shape (0 to 3), or a mask N×1×size×size of where it is."""
    if count < 1 or size < 8 or target not in ("class", "mask"):
        raise InputError(f"shapes: count={count} must be ≥ 1, size={size} ≥ 8, target={target!r} class or mask")
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(KINDS), (count,), generator=draw)
    radius = size * (0.15 + 0.15 * torch.rand(count, 1, 1, generator=draw))
    centre = size * (0.35 + 0.3 * torch.rand(2, count, 1, 1, generator=draw))
    along = torch.arange(size, dtype=torch.float32)
    y, x = (along.view(1, -1, 1) - centre[0]).abs(), (along.view(1, 1, -1) - centre[1]).abs()
    distance = (y * y + x * x).sqrt()
    square = torch.maximum(y, x) <= radius
    of_kind = torch.stack([
        distance <= radius,
        square,
        (distance <= radius) & (distance >= 0.6 * radius),
        square & (torch.minimum(y, x) <= 0.3 * radius),
    ])  # fmt: skip
    masks = of_kind[kinds, torch.arange(count)]
    ground = 64 * torch.rand(count, 3, size, size, generator=draw)
    colour = 64 + 128 * torch.rand(count, 3, 1, 1, generator=draw)
    images = (ground + colour * masks[:, None]).to(torch.uint8)
    return images, kinds if target == "class" else masks[:, None].float()
