"""The task that every contender gets: flip, rotation, brightness, contrast, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fulltilt.augment.settings import IMAGENET_MEAN, IMAGENET_STD

FLIP_PROB = 0.5
DEGREES = 15.0
BRIGHTNESS = 0.2
CONTRAST = 0.2
MEAN, STD = IMAGENET_MEAN, IMAGENET_STD
CLASSES = 10
"""Labels in the masks are 0 to 9."""

OPTIONS: dict[str, Any] = {
    "horizontal_flip_prob": FLIP_PROB,
    "rotation_degrees": DEGREES,
    "brightness": BRIGHTNESS,
    "contrast": CONTRAST,
    "normalize": "imagenet",
}
"""The task as our keywords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A batch to augment."""

    batch: int
    size: int
    """Height and width."""
    masks: bool
    device: str

    @property
    def title(self) -> str:
        return f"{self.batch}×{self.size}²" + (" + masks" if self.masks else "")

    @property
    def pixels(self) -> int:
        return self.batch * self.size * self.size


def floor_bytes(*, pixels_in: float, pixels_out: int, bytes_in: int = 1, masks: bool = False) -> int:
    """The fewest bytes a pass can move: every source value read once, every bf16 written once, and 8-bit masks both."""
    return round(pixels_in * 3 * bytes_in + pixels_out * 3 * 2 + (pixels_in + pixels_out if masks else 0))


def sets_needed(bytes_each: int, device: str) -> int:
    """How many inputs to rotate among, so that no call finds its own in the L2 cache."""
    if device == "cpu":
        return 2
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(16, max(3, -(-2 * cache // bytes_each) + 1))


def random_bytes(*shape: int, device: str, below: int = 256) -> Tensor:
    return torch.randint(0, below, shape, dtype=torch.uint8, device=device)
