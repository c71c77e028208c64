"""How a user's folder is laid out: one that is parted into train/ and val/, or one that holds images/ and masks/.

photos/cat/…             classes
photos/train/cat/…       parts, with classes in each; test/ is left alone, and train/ may be the only one
      /val/cat/…
scans/images/…           pictures and masks, which are two folders; the first may be parted alone
     /masks/…
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fulltilt.errors import InputError

TRAIN: Final = ("train", "training")
VAL: Final = ("val", "valid", "validation")
TEST: Final = ("test", "testing")
_IMAGES: Final = ("images", "image", "imgs", "img")
_MASKS: Final = ("masks", "mask", "msk", "annotations", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Pictures and, where there are some, the folder of their masks."""

    source: Path
    masks: Path | None


def parts(source: Path, masks: Path | None) -> tuple[Part, Part | None]:
    """What to train on, and what to validate with, where the folders say so."""
    whole = Part(source=source, masks=masks)
    inside = _folders(source)
    _refuse_pair(source, masks)
    train = _one_of(TRAIN, inside)
    val = _one_of(VAL, inside)
    test = _one_of(TEST, inside)
    if train is None or (val is None and test is None and len(inside) > 1):  # among others it is a class
        return whole, None
    _refuse_pair(source / train, masks)
    return (
        Part(source=source / train, masks=_masks_of(TRAIN, masks)),
        None if val is None else Part(source=source / val, masks=_masks_of(VAL, masks)),
    )


def pair(source: Path) -> tuple[Path, Path] | None:
    """The folders of pictures and of their masks in a folder that holds both."""
    inside = _folders(source)
    images, drawn = _one_of(_IMAGES, inside), _one_of(_MASKS, inside)
    return None if images is None or drawn is None else (source / images, source / drawn)


def _masks_of(part: tuple[str, ...], masks: Path | None) -> Path | None:
    """The masks' folder of a part, or the one that holds the masks of all of them."""
    folder = None if masks is None else _one_of(part, _folders(masks))
    return masks if masks is None or folder is None else masks / folder


def _refuse_pair(source: Path, masks: Path | None) -> None:
    """Folders of pictures and of masks would else be taken for two classes."""
    if masks is None and (found := pair(source)) is not None:
        images, drawn = found
        raise InputError(
            f"{source} holds the folders {images.name} and {drawn.name}, which are no classes; for images with masks "
            f"give --recipe segmentation --data {images} --masks {drawn}"
        )


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _one_of(names: tuple[str, ...], inside: list[str]) -> str | None:
    return next((folder for folder in inside if folder.lower() in names), None)
