"""Pictures that are in both parts: those to train on, and those to validate with."""

from __future__ import annotations

import filecmp
import functools
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from fulltilt.errors import InputError

_COMPARED: Final = 1000
"""Pictures to validate with that are compared, spread over all of them: where they are copies, most are."""
_PIECE: Final = 16 << 10
"""Bytes at the beginning, in the middle and at the end that tell files of one size apart."""


def refuse_same_files(training: Iterable[str], validation: Iterable[str], where: str) -> None:
    """A link to the folder of the others is no part of its own."""
    folder = functools.cache(os.path.realpath)  # of each once: pictures are many

    def real(path: str) -> str:
        within, name = os.path.split(path)
        return os.path.realpath(path) if os.path.islink(path) else os.path.join(folder(within), name)

    known = {real(path) for path in training}
    same = sorted(path for path in set(validation) if real(path) in known)
    if same:
        raise InputError(
            f"{where}: {len(same)} images are files to train on, too, first {same[0]} (that is "
            f"{os.path.realpath(same[0])}): a metric of them would say nothing; give others, or leave them out and a "
            "share is set aside"
        )


def copies(training: Iterable[str], validation: Iterable[str]) -> tuple[int, int]:
    """How many files to validate with have the content of one to train on, and how many were compared."""
    paths = sorted(set(validation))
    chosen = paths[:: max(1, math.ceil(len(paths) / _COMPARED))]
    try:
        return _copies(set(training), chosen), len(chosen)
    except OSError as error:
        raise InputError(f"{error.filename} can't be read ({error.strerror or error})") from error


def _copies(training: Iterable[str], chosen: Sequence[str]) -> int:
    sizes = {path: os.path.getsize(path) for path in chosen}
    wanted = set(sizes.values())
    alike: dict[int, list[str]] = defaultdict(list)
    for path in training:
        if (size := os.path.getsize(path)) in wanted:
            alike[size].append(path)
    known = {(size, _pieces(path, size)): path for size, some in alike.items() for path in some}
    found = 0
    for path, size in sizes.items():
        other = known.get((size, _pieces(path, size))) if size in alike else None
        found += other is not None and filecmp.cmp(path, other, shallow=False)
    return found


def _pieces(path: str, size: int) -> int:
    with open(path, "rb") as file:
        read = []
        for start in (0, size // 2, max(0, size - _PIECE)):
            file.seek(start)
            read.append(file.read(_PIECE))
    return hash(tuple(read))
