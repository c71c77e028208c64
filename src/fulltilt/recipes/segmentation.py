"""Slides under a microscope, made up: bright and dark cells on stained, uneven ground.

Which cells are to be found depends on the stain: in half of the stains the bright ones, in the others the dark ones. So
it is not enough to find blobs, and how like a picture is to one of each stain (`likeness`) is worth knowing.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fulltilt.assist import extract_features
from fulltilt.augment import GPUAugmentation
from fulltilt.errors import InputError
from fulltilt.feed.images.files import ImageFiles
from fulltilt.recipes.generated import ROOT, generated
from fulltilt.recipes.pictures import Pictures
from fulltilt.train.config.data import set_aside

STAINS: Final = ((165, 105, 150), (110, 130, 175), (145, 160, 100), (175, 135, 90))
"""The ground's colour; bright cells are searched for in the first half of them, dark ones in the others."""
_REFERENCE_SIDE: Final = 128
_EVERY: Final = 4
"""Of a picture's rows and columns, those that its likeness is taken from: colours show in a few."""

Floats = NDArray[np.float32]
Picture = NDArray[np.uint8]


def files(count: int = 4000, size: int = 512, seed: int = 0, root: str = ROOT) -> ImageFiles:
    """`count` pictures (JPEG) in images/, masks (PNG) of the same names in masks/; generated if they are not there."""
    if size < 32:
        raise InputError(f"size is {size}; cells can be seen from 32 pixels on")

    folder = generated(
        "segmentation",
        {"count": count, "size": size, "seed": seed},
        count,
        functools.partial(_write, size=size, seed=seed),
        sample_seconds=1e-7 * size**2,
        root=root,
    )
    return ImageFiles(folder / "images", masks=folder / "masks")


def _write(folder: Path, index: int, *, size: int, seed: int) -> None:
    picture, mask = draw(index, size, seed)
    for part in ("images", "masks"):
        (folder / part).mkdir(exist_ok=True)
    Image.fromarray(picture).save(folder / "images" / f"{index:06d}.jpg", quality=90)
    labels = Image.fromarray(mask)
    labels.putpalette([0, 0, 0, 255, 255, 255])  # so that a viewer shows a 1 as white
    labels.save(folder / "masks" / f"{index:06d}.png")


def dataset(training: bool = True, val_share: float = 0.1, seed: int = 0, **arguments: Any) -> Pictures:
    """The same files as an ordinary data set, augmented on the CPU in the process that asks: one for a debugger.

    Args:
        training: the pictures to train on, augmented; otherwise those that `val_share` and `seed` set aside, as they
            are.
        arguments: of `files`, beside the seed.
    """
    train, val = set_aside(files(seed=seed, **arguments), val_share, seed)
    return Pictures(train if training else val, GPUAugmentation().settings, training=training, features=likeness)


def draw(index: int, size: int, seed: int = 0) -> tuple[Picture, Picture]:
    """Picture `index` (size × size × 3) and its mask of 0 and 1; the same whenever it is drawn."""
    random = np.random.default_rng((seed, index))
    stain = index % len(STAINS)
    shade = 1 + 0.12 * _field(random, size, 4) + 0.05 * _field(random, size, 24)
    ground = np.asarray(STAINS[stain], np.float32) * shade[..., None]
    picture = ground.copy()
    mask = np.zeros((size, size), np.uint8)
    bright_wanted = stain < len(STAINS) // 2
    for cell in range(random.integers(5, 9)):  # one that covers another is the one that is seen
        bright = bool(cell % 2)
        where, inside = _cell(random, size)
        factor = random.uniform(1.3, 1.45) if bright else random.uniform(0.45, 0.6)
        picture[where][inside] = np.float32(factor) * ground[where][inside]
        mask[where][inside] = bright == bright_wanted
    picture += random.normal(0, 5, (size, size, 1)).astype(np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8), mask


def _cell(random: np.random.Generator, size: int) -> tuple[tuple[slice, slice], NDArray[np.bool_]]:
    """A round blob with a wavy edge: the box it lies in, and which of its pixels are in the blob."""
    radius = random.uniform(0.09, 0.17) * size
    row, column = random.uniform(0, size, 2)
    reach = math.ceil(1.2 * radius)
    rows, columns = (slice(max(0, int(at) - reach), min(size, int(at) + reach + 1)) for at in (row, column))
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] - np.float32(row)
    x = np.arange(columns.start, columns.stop, dtype=np.float32)[None] - np.float32(column)
    waves, turn = random.integers(2, 6), random.uniform(0, 2 * math.pi)
    inside: NDArray[np.bool_] = np.hypot(y, x) <= radius * (1 + 0.15 * np.sin(waves * np.arctan2(y, x) + turn))
    return (rows, columns), inside


def _field(random: np.random.Generator, size: int, cells: int) -> Floats:
    """Smooth noise of about so many hills to a side."""
    coarse = Image.fromarray(random.normal(0, 0.5, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))


def likeness(image: Tensor) -> Tensor:
    """How like a picture (uint8, 3×H×W) is to one of each stain, from 0 to 1."""
    return extract_features(image[:, ::_EVERY, ::_EVERY], reference=_known())


@functools.cache
def _known() -> Tensor:
    pictures = [draw(index, _REFERENCE_SIDE, seed=1 << 30)[0] for index in range(len(STAINS))]
    return extract_features(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2))
