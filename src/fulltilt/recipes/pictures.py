"""Image files as an ordinary data set: opened with Pillow, augmented on the CPU, one sample at a time.

This is how most scripts read pictures. It is the *before* side of the recipes that have image files, and what a
debugger can be stepped through.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import Dataset

from fulltilt.augment import Settings
from fulltilt.errors import InputError
from fulltilt.feed.images.files import ImageFiles

_DONE = {
    "horizontal_flip_prob", "vertical_flip_prob", "rotation_degrees", "brightness", "contrast", "size", "normalize",
    "fill", "mask_fill", "antialias", "contrast_pivot",
}  # fmt: skip
"""Options of an augmentation that are made here, too. Pillow's contrast pivots on each image's mean."""

Features = Callable[[Tensor], Any]


class Pictures(Dataset[tuple[Any, ...]]):
    """Samples (image, label), (image, mask), (image, mask, features) or (image, features, label).

    Images are floats in [0, 1], C×H×W, normalised where that is asked for.
    """

    def __init__(
        self,
        files: ImageFiles,
        settings: Settings,
        *,
        channels: int = 3,
        training: bool = True,
        features: Features | None = None,
    ) -> None:
        """
        Args:
            settings: what is done to an image.
            training: also what is random in `settings`; otherwise size and normalisation only.
            features: makes a row of numbers of the pixels as they are in the file, uint8 C×H×W; called every time.
        """
        rest = Settings()
        other = [f.name for f in fields(Settings) if f.name not in _DONE]
        if unknown := [name for name in other if getattr(settings, name) != getattr(rest, name)]:
            raise InputError(
                f"gpu_augmentation: {', '.join(unknown)} is not made on the CPU; allowed: {', '.join(sorted(_DONE))}"
            )
        if files.labels is None and files.masks is None:
            raise InputError("the files have neither labels nor masks: there is nothing to learn from them")
        self._files, self._settings, self._features = files, settings, features
        self._mode = "L" if channels == 1 else "RGB"
        self._training = training

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        files = self._files
        with Image.open(files.paths[index]) as file:
            image: Image.Image = file.convert(self._mode)
        more = () if self._features is None else (_row(self._features, image),)
        mask = None
        if files.masks is not None:
            with Image.open(files.masks[index]) as file:
                mask = Image.fromarray(np.array(file))  # the labels that a palette stands for, not its colours
        if self._settings.output_size is not None:
            height, width = self._settings.output_size
            image = image.resize((width, height), Image.Resampling.BILINEAR)
            mask = None if mask is None else mask.resize((width, height), Image.Resampling.NEAREST)
        if self._training:
            image, mask = self._augmented(image, mask)
        pixels = self._normalised(_tensor(image).float() / 255)
        if mask is not None:
            return pixels, torch.from_numpy(np.array(mask)), *more
        assert files.labels is not None
        return pixels, *more, torch.tensor(files.labels[index])

    def _augmented(self, image: Image.Image, mask: Image.Image | None) -> tuple[Image.Image, Image.Image | None]:
        wanted = self._settings
        turns = (
            (wanted.horizontal_flip_prob, Image.Transpose.FLIP_LEFT_RIGHT),
            (wanted.vertical_flip_prob, Image.Transpose.FLIP_TOP_BOTTOM),
        )
        for probability, turn in turns:
            if random.random() < probability:
                image = image.transpose(turn)
                mask = None if mask is None else mask.transpose(turn)
        angle = _drawn(wanted.rotation_degrees, 0.0)
        if angle:
            fill = 0.0 if isinstance(wanted.fill, str) else 255 * wanted.fill
            colour = (round(fill),) * len(image.getbands())
            image = image.rotate(angle, Image.Resampling.BILINEAR, fillcolor=colour if len(colour) > 1 else colour[0])
            mask = None if mask is None else mask.rotate(angle, Image.Resampling.NEAREST, fillcolor=wanted.mask_fill)
        for enhance, amount in ((ImageEnhance.Brightness, wanted.brightness), (ImageEnhance.Contrast, wanted.contrast)):
            factor = _drawn(amount, 1.0)
            if not math.isclose(factor, 1.0):
                image = enhance(image).enhance(factor)
        return image, mask

    def _normalised(self, pixels: Tensor) -> Tensor:
        if self._settings.mean_std is None:
            return pixels
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in self._settings.mean_std)
        return (pixels - mean) / std


def _drawn(amount: float | tuple[float, float], centre: float) -> float:
    """A half-width around `centre`, or a pair (low, high)."""
    low, high = amount if isinstance(amount, tuple) else (centre - amount, centre + amount)
    return random.uniform(low, high)


def _tensor(image: Image.Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _row(features: Features, image: Image.Image) -> Tensor:
    return torch.as_tensor(np.asarray(features(_tensor(image)), np.float32))
