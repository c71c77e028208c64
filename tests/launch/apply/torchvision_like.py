"""torchvision's random transforms of Pillow's images, written anew: what a moved chain has to be distributed like.

Each is what `transforms_like.tv` makes, with torchvision's attributes, and does what torchvision does: the same draws
from the same distributions, on bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from tests.launch.apply.transforms_like import tv

Range = tuple[float, float]


def uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def whole(low: int, high: int) -> int:
    """From `low` to `high`, both of them possible."""
    return int(torch.randint(low, high + 1, ()))


def random_crop(size: int, *, padding: int = 0) -> Any:
    def call(image: Any) -> Any:
        wide = Image.new("RGB", (image.width + 2 * padding, image.height + 2 * padding))
        wide.paste(image, (padding, padding))
        left, top = whole(0, wide.width - size), whole(0, wide.height - size)
        return wide.crop((left, top, left + size, top + size))

    return tv(
        "RandomCrop", call, size=(size, size), padding=padding or None, fill=0, pad_if_needed=False,
        padding_mode="constant",
    )  # fmt: skip


def resized_crop(size: int, scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> Any:
    def box(image: Any) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = image.width * image.height * uniform(*scale)
            shape = math.exp(uniform(math.log(ratio[0]), math.log(ratio[1])))
            width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < width <= image.width and 0 < height <= image.height:
                left, top = whole(0, image.width - width), whole(0, image.height - height)
                return left, top, left + width, top + height
        raise AssertionError("its fallback is not for images of such a shape")

    def call(image: Any) -> Any:
        return image.crop(box(image)).resize((size, size), Image.Resampling.BILINEAR)

    return tv("RandomResizedCrop", call, size=(size, size), scale=scale, ratio=ratio)


def rotation(degrees: float | Range, *, fill: int = 0) -> Any:
    low, high = degrees if isinstance(degrees, tuple) else (-degrees, degrees)

    def call(image: Any) -> Any:
        return image.rotate(uniform(low, high), Image.Resampling.BILINEAR, fillcolor=(fill,) * 3)

    return tv("RandomRotation", call, degrees=[low, high], expand=False, center=None, fill=fill)


def affine(degrees: float, translate: Range, scale: Range, *, fill: int = 0) -> Any:
    """Without shear: about the centre, first turned and scaled, then moved by whole pixels."""

    def call(image: Any) -> Any:
        angle, zoom = math.radians(uniform(-degrees, degrees)), uniform(*scale)
        across = round(uniform(-1, 1) * translate[0] * image.width)
        down = round(uniform(-1, 1) * translate[1] * image.height)
        x, y = image.width * 0.5, image.height * 0.5
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        back = (
            cos,
            sin,
            x - cos * (x + across) - sin * (y + down),
            -sin,
            cos,
            y + sin * (x + across) - cos * (y + down),
        )
        return image.transform(
            image.size, Image.Transform.AFFINE, back, Image.Resampling.BILINEAR, fillcolor=(fill,) * 3
        )

    return tv(
        "RandomAffine", call, degrees=[-degrees, degrees], translate=translate, scale=scale, shear=None, fill=fill,
        center=None,
    )  # fmt: skip


def jitter(brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0) -> Any:
    def hued(image: Any, by: float) -> Any:
        turned = np.array(image.convert("HSV"))
        turned[..., 0] += np.uint8(int(by * 255) % 256)
        return Image.fromarray(turned, "HSV").convert("RGB")

    steps: dict[str, tuple[float, Callable[[Any, float], Any]]] = {
        "brightness": (brightness, lambda image, by: ImageEnhance.Brightness(image).enhance(1.0 + by)),
        "contrast": (contrast, lambda image, by: ImageEnhance.Contrast(image).enhance(1.0 + by)),
        "saturation": (saturation, lambda image, by: ImageEnhance.Color(image).enhance(1.0 + by)),
        "hue": (hue, hued),
    }

    def call(image: Any) -> Any:
        for number in torch.randperm(len(steps)).tolist():  # in any order, as there
            reach, step = list(steps.values())[number]
            image = step(image, uniform(-reach, reach)) if reach else image
        return image

    ranges = {
        name: ((-reach, reach) if name == "hue" else (1.0 - reach, 1.0 + reach)) if reach else None
        for name, (reach, _) in steps.items()
    }
    return tv("ColorJitter", call, **ranges)


def invert(p: float = 0.5) -> Any:
    def call(image: Any) -> Any:
        return image.point(lambda value: 255 - value) if uniform(0, 1) < p else image

    return tv("RandomInvert", call, p=p)


def now_and_then(p: float, inner: Any) -> Any:
    def call(image: Any) -> Any:
        return inner(image) if uniform(0, 1) < p else image

    return tv("RandomApply", call, transforms=[inner], p=p)
