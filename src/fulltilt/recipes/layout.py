"""How a user's folder is laid out: one that is parted into train/ and val/, or one that holds images/ and masks/.

photos/cat/…             classes
photos/train/cat/…       parts, with classes in each; test/ is left alone, and train/ may be the only one
      /val/cat/…
scans/images/…           pictures and masks, which are two folders; the first may be parted alone
     /masks/…
scans/train/images/…     the same in each part
           /masks/…
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    whole = _paired(Part(source=source, masks=masks))
    inside = _folders(whole.source)
    train = _one_of(TRAIN, inside)
    val = _one_of(VAL, inside)
    test = _one_of(TEST, inside)
    if train is None or (val is None and test is None and len(inside) > 1):  # among others it is a class
        return whole, None
    return _part(whole, TRAIN, train), None if val is None else _part(whole, VAL, val)


def _part(whole: Part, names: tuple[str, ...], folder: str) -> Part:
    """Its masks lie in it, beside its pictures; or in a folder of its name, or in that of all masks."""
    source, masks = whole.source / folder, whole.masks
    if masks is None:
        return _paired(Part(source=source, masks=None))
    own = _one_of(names, _folders(masks))
    return Part(source=source, masks=masks if own is None else masks / own)


def _paired(part: Part) -> Part:
    """The folders of pictures and of their masks, where it is of a folder that holds both."""
    if part.masks is not None:
        return part
    inside = _folders(part.source)
    images, drawn = _one_of(_IMAGES, inside), _one_of(_MASKS, inside)
    return part if images is None or drawn is None else Part(source=part.source / images, masks=part.source / drawn)


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _one_of(names: tuple[str, ...], inside: list[str]) -> str | None:
    return next((folder for folder in inside if folder.lower() in names), None)
