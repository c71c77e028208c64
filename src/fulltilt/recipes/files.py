"""A user's own data: pictures, looked at before a configuration is written for them, and videos with segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from PIL import Image, UnidentifiedImageError

from fulltilt.errors import InputError
from fulltilt.feed.clips import VideoClips
from fulltilt.feed.files import ImageFiles

_LOOKED_AT: Final = 32
"""Pictures that are opened to see what they are like: spread over all of them."""
_LEAST_CLASSES: Final = 2
_LEAST_PICTURES: Final = 5
"""Fewer can't be parted into some to train on and some to validate with."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What there is, as far as a configuration has to know."""

    source: Path
    masks: Path | None
    count: int
    classes: tuple[str, ...] | None
    """Names in the order of their numbers; None for pictures with masks."""
    channels: Literal[1, 3]
    height: int
    width: int
    """The median of the pictures that were looked at."""


def look(source: Path, masks: Path | None = None) -> Found:
    """See what is in a folder (one subfolder per class) or .csv (path, label, mask), and that all of it is there."""
    if not source.exists():
        raise InputError(f"{source} does not exist; give a folder of pictures or a .csv file")
    files = ImageFiles(source, masks=masks)
    if files.labels is None and files.masks is None:
        raise InputError(
            f"{source}: {len(files)} pictures without labels or masks; have a subfolder for each class, a .csv with a "
            "column label or mask, or give the folder of masks"
        )
    if len(files) < _LEAST_PICTURES:
        raise InputError(f"{source}: {len(files)} pictures are too few; there must be {_LEAST_PICTURES} at least")
    _check_there(files.paths)
    _check_there(files.masks or [])
    every = files.paths[:: max(1, len(files) // _LOOKED_AT)][:_LOOKED_AT]
    seen = [_size_and_mode(path) for path in every]
    grey = all(mode in ("1", "L", "LA", "I;16") for _, mode in seen)
    heights, widths = sorted(size[1] for size, _ in seen), sorted(size[0] for size, _ in seen)
    return Found(
        source=source.resolve(),
        masks=None if masks is None else masks.resolve(),
        count=len(files),
        classes=None if files.masks is not None else _classes(files, source),
        channels=1 if grey else 3,
        height=heights[len(heights) // 2],
        width=widths[len(widths) // 2],
    )


def _classes(files: ImageFiles, source: Path) -> tuple[str, ...]:
    assert files.labels is not None
    if files.labels.dtype.kind == "f":
        raise InputError(f"{source}: labels are numbers like {files.labels[0]:g}, not classes; this needs classes")
    counted = Counter(files.labels.tolist())
    if min(counted) < 0:
        raise InputError(f"{source}: a label is {min(counted)}; classes are numbered from 0 on")
    names = files.classes or [str(number) for number in range(max(counted) + 1)]
    if len(names) < _LEAST_CLASSES:
        raise InputError(
            f"{source}: all {len(files)} pictures are of one class, {names[0]}; there must be two at least"
        )
    if len(files) < len(names):
        raise InputError(
            f"{source}: {len(files)} pictures for classes from 0 to {max(counted)}: are labels numbered from 0 on?"
        )
    return tuple(names)


def _check_there(paths: list[str]) -> None:
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        raise InputError(f"{len(missing)} of {len(paths)} files are not there, first {missing[0]}")


def _size_and_mode(path: str) -> tuple[tuple[int, int], str]:
    try:
        with Image.open(path) as picture:
            return picture.size, picture.mode
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"{path} can't be opened as a picture ({error})") from error


def videos(
    path: str,
    *,
    classes: Sequence[str] | None = None,
    length: int = 768,
    size: int = 160,
    clips: int = 1,
    jitter: bool = True,
    seed: int = 0,
    cache: str | None = None,
) -> VideoClips:
    """Clips with a label for each frame, from a .csv of segments: path, label, start and end in seconds.

    Args:
        classes: names in the order of their numbers, the same for training and validation.
        cache: a folder that `fulltilt video cache` has filled.
    """
    return VideoClips(
        path,
        length=length,
        size=(size, size),
        clips=clips,
        jitter=jitter,
        classes=classes,
        temporal=True,
        seed=seed,
        cache=cache,
    )
