"""Image files and mask files as tensors, whatever kind they are: for looking at, not for training from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fulltilt.errors import InputError
from fulltilt.pairs import by_image

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_MOST_COLOURS = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """An image, and its mask where there is one."""

    name: str
    image: Tensor
    """H × W × C, uint8; C is 1 or 3."""
    mask: Tensor | None = None
    """H × W, int64: class numbers."""
    note: str = ""
    """What was done to show it."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return self.image.shape[0], self.image.shape[1]


def find_pictures(images: Path, masks: Path | None, *, most: int) -> list[tuple[Path, Path | None]]:
    """The image files that a path stands for, in sorted order, each with its mask's file."""
    if images.is_dir():
        files = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())[:most]
        if not files:
            inside = sorted(path.name for path in images.iterdir() if path.is_dir())
            hint = f"; name one of the folders in it, such as {images / inside[0]}" if inside else ""
            raise InputError(f"{images}: no images in this folder; looked for {', '.join(SUFFIXES)}{hint}")
        if masks is not None and not masks.is_dir():
            raise InputError(f"--mask {masks}: for a folder of images name a folder of masks with the same file names")
    elif images.exists():
        files = [images]
    else:
        raise InputError(f"{images}: no such file or folder")
    if masks is None:
        return [(path, None) for path in files]
    if not masks.is_dir():
        return [(files[0], masks)]
    by_stem = {path.stem: path for path in sorted(masks.iterdir(), reverse=True) if path.suffix.lower() in SUFFIXES}
    by_name = by_image([path.stem for path in files], by_stem)
    missing = [path.name for path in files if path.stem not in by_name]
    if missing:
        raise InputError(f"--mask {masks}: no mask named like {', '.join(missing)} (any of {', '.join(SUFFIXES)})")
    return [(path, by_name[path.stem]) for path in files]


def read_picture(
    path: Path, mask: Path | None = None, *, channels: int | None = None, most: int | None = None
) -> Picture:
    """One picture, upright. `channels` turns it gray (1) or to colour (3); `most` is its longer side at most."""
    from PIL import Image

    image, notes = _eight_bits(_open(path))
    if channels is not None:
        image = image.convert("L" if channels == 1 else "RGB")
    labels = None if mask is None else _labels(_open(mask), mask)
    if labels is not None and labels.shape != (image.height, image.width):
        raise InputError(
            f"{mask}: the mask is {labels.shape[1]}x{labels.shape[0]} and its image {path.name} is "
            f"{image.width}x{image.height}; they must be alike"
        )
    if most is not None and max(image.size) > most:
        ratio = most / max(image.size)
        size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
        notes.append(f"reduced from {image.width}x{image.height}")
        image = image.resize(size, Image.Resampling.LANCZOS)
        if labels is not None:
            rows, columns = (_nearest(new, old) for new, old in zip(size[::-1], labels.shape, strict=True))
            labels = labels[rows][:, columns]
    pixels = np.asarray(image)
    return Picture(
        name=path.name,
        image=torch.from_numpy(np.array(pixels if pixels.ndim == 3 else pixels[:, :, None])),
        mask=None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        note=", ".join(notes),
    )


def _open(path: Path) -> Image:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.load()
            return ImageOps.exif_transpose(image)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: can't be read as an image ({error})") from error


def _eight_bits(image: Image) -> tuple[Image, list[str]]:
    """As L or RGB, and what that took."""
    from PIL import Image

    if image.mode in _DEEP:
        pixels = np.nan_to_num(np.asarray(image).astype(np.float64))
        low, high = float(pixels.min()), float(pixels.max())
        spread = (pixels - low) * (255.0 / (high - low) if high > low else 0.0)
        return Image.fromarray(np.rint(spread).astype(np.uint8)), [f"stretched from {low:g} to {high:g}"]
    if image.mode in ("1", "L"):
        return image.convert("L"), []
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        flat = Image.new("RGBA", layer.size, "white")
        flat.alpha_composite(layer)
        return flat.convert("RGB"), ["transparent parts on white"]
    return image.convert("RGB"), []


def _labels(image: Image, path: Path) -> np.ndarray[Any, Any]:
    """Class numbers: a palette's indices and gray values as they are, colours numbered in sorted order, black as 0."""
    if image.mode in ("P", "L", "1", *_DEEP):
        pixels = np.asarray(image)
        if pixels.dtype.kind == "f" and not np.array_equal(pixels, np.rint(pixels)):
            raise InputError(f"{path}: a mask holds whole class numbers; this one holds fractions")
        return pixels.astype(np.int64)
    red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int64), -1, 0)
    colours, labels = np.unique((red << 16) | (green << 8) | blue, return_inverse=True)
    if len(colours) > _MOST_COLOURS:
        raise InputError(
            f"{path}: {len(colours)} colours; a mask holds class numbers, or at most {_MOST_COLOURS} colours, one per "
            "class. Is it a photograph, or was it saved as JPEG?"
        )
    first = 0 if colours[0] == 0 else 1
    return labels.reshape(red.shape) + first


def _nearest(new: int, old: int) -> np.ndarray[Any, Any]:
    return np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.int64), old - 1)


def known_labels(pictures: Sequence[Picture]) -> list[int]:
    """All class numbers in the pictures' masks, sorted."""
    found = [np.unique(picture.mask.numpy()) for picture in pictures if picture.mask is not None]
    return sorted({label for labels in found for label in labels.tolist()})
