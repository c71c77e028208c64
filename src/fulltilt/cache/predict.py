"""How large a cache will be, from a look at some of its files; asked before anything is written."""

from __future__ import annotations

import math
import os
import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fulltilt.cache.make import kept_bytes
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.shard import RECORD_BYTES, align, shard_files
from fulltilt.decode import Header, probe
from fulltilt.errors import CacheError, FulltiltError
from fulltilt.words import disk_size

_SAMPLED: Final = 512
_HEAD_BYTES: Final = 1 << 18
_ERRORS: Final = 3.0
"""How many standard errors the margin is."""


File = TypeVar("File")


class Sample(NamedTuple):
    """One image and, perhaps, its mask."""

    image: str
    mask: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is still to be made, and the room that it takes."""

    samples: int
    """To be made."""
    present: int
    """In the cache already."""
    probed: int
    """Files that were looked at; all of them where they are few."""
    unreadable: int
    """Of those."""
    bytes: int
    """To be written."""
    margin_bytes: int
    """How far it may be off: three standard errors of the sampling; 0 when every file was looked at."""
    present_bytes: int
    """What the cache takes now."""
    free_bytes: int
    """On its disk."""


def predict(
    folder: Path, missing: Sequence[Sample], settings: CacheSettings, *, present: int, probed: int = _SAMPLED
) -> Prediction:
    """Read up to `probed` headers, drawn the same way every time."""
    rooms: list[int | None] = []
    for sample in some(missing, probed):
        try:
            rooms.append(_room(sample, _header(sample.image), settings))
        except (FulltiltError, OSError):  # the build says what is wrong with it; here it only takes no room
            rooms.append(None)
    return extrapolated(folder, rooms, of=len(missing), samples=len(missing), present=present)


def some(files: Sequence[File], most: int) -> Sequence[File]:
    """Up to `most` of them, the same every time."""
    return files if len(files) <= most else random.Random(0).sample(files, most)


def extrapolated(folder: Path, rooms: Sequence[int | None], *, of: int, samples: int, present: int) -> Prediction:
    """From the room that some of so many files will take; None for one that can't be read."""
    sizes = [room for room in rooms if room is not None]
    margin = 0.0
    if len(rooms) < of and len(sizes) > 1:
        margin = _ERRORS * statistics.stdev(sizes) / math.sqrt(len(sizes)) * of
    return Prediction(
        samples=samples,
        present=present,
        probed=len(rooms),
        unreadable=len(rooms) - len(sizes),
        bytes=round(sum(sizes) / len(rooms) * of) if rooms else 0,
        margin_bytes=round(margin),
        present_bytes=folder_bytes(folder),
        free_bytes=shutil.disk_usage(existing(folder)).free,
    )


def check_room(folder: Path, prediction: Prediction, budget_bytes: int | None, *, noun: str = "samples") -> None:
    """CacheError when it does not fit the disk or the budget."""
    needed = prediction.bytes + prediction.margin_bytes
    about = f"{prediction.samples:,} {noun} need about {disk_size(prediction.bytes)}"
    if prediction.margin_bytes:
        about += f" (at most {disk_size(needed)}, from {prediction.probed:,} of them)"
    remedy = "keep them smaller (--size), name another folder, or cache a part of the files; nothing was written"
    if budget_bytes is not None and prediction.present_bytes + needed > budget_bytes:
        there = f" beside the {disk_size(prediction.present_bytes)} there" if prediction.present_bytes else ""
        raise CacheError(f"{about}{there}; the budget is {disk_size(budget_bytes)}. Raise --budget, {remedy}")
    if needed > prediction.free_bytes:
        raise CacheError(
            f"{about}; the disk of {folder} has {disk_size(prediction.free_bytes)} free. Make room, {remedy}"
        )


def folder_bytes(folder: Path) -> int:
    """What the shards take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in shard_files(folder)) if folder.is_dir() else 0


def _room(sample: Sample, header: Header, settings: CacheSettings) -> int:
    pixels = kept_bytes(header, settings, masked=False)
    mask = kept_bytes(header, settings, masked=True) - pixels if sample.mask is not None else 0
    return align(pixels) + align(mask) + RECORD_BYTES + len(sample.image) + len(sample.mask or "")


def _header(path: str) -> Header:
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        try:
            return probe(head)
        except FulltiltError:
            if len(head) < _HEAD_BYTES:
                raise
        return probe(head + file.read())  # a header behind a long preview, or a format that keeps it at the end


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there: its disk is the one that it would be on."""
    place = Path(os.path.abspath(folder))
    while not place.exists():
        place = place.parent
    return place
