"""Grey pictures in eight classes: a shape of a kind, somewhere, turned, on uneven ground, as JPEG files."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fulltilt.errors import InputError
from fulltilt.feed.images.files import ImageFiles
from fulltilt.recipes.generated import ROOT, generated

KINDS = ("bars", "checks", "cross", "disc", "ring", "square", "star", "triangle")
"""In the order of their numbers, which is that of their folders."""

Floats = NDArray[np.float32]


def files(count: int = 20_000, size: int = 128, seed: int = 0, root: str = ROOT) -> ImageFiles:
    """`count` pictures in a folder for each class, generated where they are not there yet."""
    if size < 16:
        raise InputError(f"size is {size}; shapes can be told apart from 16 pixels on")
    folder = generated(
        "classification",
        {"count": count, "size": size, "seed": seed},
        count,
        functools.partial(_write, size=size, seed=seed),
        sample_seconds=8e-8 * size**2,
        root=root,
    )
    return ImageFiles(folder, classes=KINDS)


def _write(folder: Path, index: int, *, size: int, seed: int) -> None:
    picture, kind = draw(index, size, seed)
    place = folder / KINDS[kind]
    place.mkdir(exist_ok=True)
    Image.fromarray(picture).save(place / f"{index:06d}.jpg", quality=92)


def draw(index: int, size: int, seed: int = 0) -> tuple[NDArray[np.uint8], int]:
    """Picture `index` (size × size) and its class; the same whenever it is drawn."""
    random = np.random.default_rng((seed, index))
    kind = index % len(KINDS)
    ground = random.uniform(60, 150) + random.uniform(-30, 30) * _waves(random, size)
    radius = random.uniform(0.2, 0.36) * size
    row, column = random.uniform(0.38, 0.62, 2) * size
    turn = random.uniform(-0.35, 0.35)
    along = np.arange(size, dtype=np.float32)
    y, x = (along[:, None] - np.float32(row)) / radius, (along[None] - np.float32(column)) / radius
    y, x = math.cos(turn) * y - math.sin(turn) * x, math.sin(turn) * y + math.cos(turn) * x
    inside = _inside(KINDS[kind], y, x)
    contrast = random.uniform(50, 100) * random.choice((-1, 1))
    picture = ground + contrast * inside + random.normal(0, 6, (size, size))
    return np.clip(picture, 0, 255).astype(np.uint8), kind


def _inside(kind: str, y: Floats, x: Floats) -> NDArray[np.bool_]:
    """Where the shape is, in units of its radius."""
    far = np.hypot(y, x)
    square = np.maximum(np.abs(y), np.abs(x)) <= 0.85
    angle = np.arctan2(y, x)
    shapes = {
        "bars": lambda: square & (np.floor(y * 3) % 2 == 0),
        "checks": lambda: square & ((np.floor(y * 2.4) + np.floor(x * 2.4)) % 2 == 0),
        "cross": lambda: square & (np.minimum(np.abs(y), np.abs(x)) <= 0.25),
        "disc": lambda: far <= 0.95,
        "ring": lambda: (far <= 0.95) & (far >= 0.6),
        "square": lambda: square,
        "star": lambda: far <= 0.62 + 0.38 * np.cos(5 * angle),
        "triangle": lambda: (y <= 0.6) & (y >= 1.9 * np.abs(x) - 1.0),
    }
    found: NDArray[np.bool_] = shapes[kind]()  # type: ignore[no-untyped-call]
    return found


def _waves(random: np.random.Generator, size: int) -> Floats:
    """A smooth field between about −1 and 1: uneven light."""
    coarse = Image.fromarray(random.normal(0, 0.5, (5, 5)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC))
