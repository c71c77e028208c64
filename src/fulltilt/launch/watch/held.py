"""What a data set holds that its workers can't have as the training process has it. Nothing fails where they do.

An open file: workers that are forked share its place. One moves it to its sample, another reads there; samples are
mixed up, now and then.

A generator of random numbers: in the training process it goes on from epoch to epoch; of workers each has a copy, all
of which draw the same numbers, and begin anew whenever workers start.
"""

from __future__ import annotations

import io
import mmap
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fulltilt.launch.watch.stages import Timed
from fulltilt.launch.watch.transforms import datasets, own

_DEEPEST = 5
"""A generator of a transform in a list of a transform in a list, say."""
_MOST_MEMBERS = 32
_SHARED = ("h5py", "lmdb", "netCDF4", "sqlite3", "tables")
"""Packages whose files and connections, opened before the fork, are read past Python."""
_SEE_TO_IT = ("albumentations",)
"""Packages whose generators know of workers."""


def open_file(dataset: Any) -> str | None:
    """The first that it would read from, by its attribute: `Records.file`; None where there is none."""
    return _first(dataset, _is_open_file, unless=lambda value: type(value) is mmap.mmap)  # the file is there for that


def holds_open_file(value: Any) -> bool:
    """It is one, or something within it is."""
    return _holds(value, _is_open_file)


def generator(dataset: Any) -> str | None:
    """The first that it draws from, by its attribute: `Photos.rng`; None where there is none."""
    return _first(dataset, _is_generator)


def _first(
    dataset: Any, is_it: Callable[[Any], bool], *, unless: Callable[[Any], bool] = lambda _: False
) -> str | None:
    """`unless`: a data set that has such an attribute is passed by."""
    for one in reversed(list(datasets(dataset))):
        attributes = _attributes(one)
        if any(map(unless, attributes.values())):
            continue
        for name, value in attributes.items():
            if _holds(value, is_it):
                return f"{type(one).__name__}.{name}"
    return None


def _holds(value: Any, is_it: Callable[[Any], bool]) -> bool:
    """It, or something within it: the nearest first, so that each is looked into from where it is least deep."""
    level, known = [value], set[int]()
    for _ in range(_DEEPEST + 1):
        level = [one.function if type(one) is Timed else one for one in level]  # ours, in place of the script's
        if any(map(is_it, level)):
            return True
        inner = {id(one): one for outer in level for one in _members(outer)}
        level = [one for number, one in inner.items() if number not in known]
        known |= inner.keys()
    return False


def _members(value: Any) -> Iterator[Any]:
    """Of a small container what stands in it, of an archive its file, of a transform its generator."""
    if type(value) in (dict, list, tuple):
        if len(value) <= _MOST_MEMBERS:
            yield from value.values() if type(value) is dict else value
    elif not issubclass(type(value), type) and _package(value) not in _SEE_TO_IT:
        yield from _attributes(value).values()


def _attributes(value: Any) -> dict[str, Any]:
    found = own(value)
    return found if len(found) <= _MOST_MEMBERS else {}


def _is_open_file(value: Any) -> bool:
    if issubclass(type(value), io.IOBase):  # isinstance asks the object itself, which may be somebody's proxy
        return _has_a_place(value)
    return _package(value) in _SHARED and bool(value)  # else it is closed


def _has_a_place(file: io.IOBase) -> bool:
    """Of the system's; what lies in memory is each process's own, and a log is not read."""
    try:
        return not file.closed and file.readable() and file.seekable() and file.fileno() >= 0
    except (OSError, ValueError):  # it has no number
        return False


def _is_generator(value: Any) -> bool:
    import torch

    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return issubclass(type(value), kinds) and not issubclass(type(value), random.SystemRandom)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]
