"""What a data set keeps for itself, and workers can't have as the training process has it. Looked for as far down as
changes of a data set are.

An open file: workers that are forked share its place in it, and read each other's samples. A script without workers, or
with one, may do so for years. Found are files of Python's own, and what archives and connections hold.

A generator of random numbers: in the training process it goes on from epoch to epoch, in workers that start for each
it begins anew, in those that live on it does not. The first epoch, which losses are compared of, may be the same.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from typing import Any

from fulltilt.launch.apply.changed import DEEPEST, MOST_MEMBERS

_FOREIGN = ("h5py", "lmdb", "sqlite3", "tables", "netCDF4")
"""Packages whose open files and connections are not for two processes."""
_INSIDE_MEMORY = (io.BytesIO, io.StringIO)
_SEE_TO_IT = ("albumentations",)
"""Packages whose generators know of workers."""


def open_file_in(dataset: Any) -> str | None:
    """The name of a type that keeps one open; None where there is none."""
    return _found(dataset, _is_open_file, DEEPEST + 1, set())


def generator_in(dataset: Any) -> str | None:
    """The name of its type; None where there is none."""
    return _found(dataset, _is_generator, DEEPEST + 1, set())


def _is_open_file(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not isinstance(value, _INSIDE_MEMORY) and not value.closed
    return _package(value) in _FOREIGN


def _is_generator(value: Any) -> bool:
    import torch

    numpy = sys.modules.get("numpy")
    kinds = (random.Random, torch.Generator)
    kinds += () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _found(value: Any, is_it: Callable[[Any], bool], depth: int, known: set[int]) -> str | None:
    if depth <= 0 or id(value) in known or isinstance(value, str | bytes | int | float | type | type(None)):
        return None
    known.add(id(value))
    if is_it(value):
        return type(value).__name__
    if isinstance(value, dict | list | tuple | set):
        members = list(value.values()) if isinstance(value, dict) else list(value)
        members = members if len(members) <= MOST_MEMBERS else []
    else:
        own = getattr(value, "__dict__", None)
        members = list(own.values()) if isinstance(own, dict) and _package(value) not in _SEE_TO_IT else []
    inner = (_found(member, is_it, depth - 1, known) for member in members)
    return next((name for name in inner if name is not None), None)


def _package(value: Any) -> str:
    return type(value).__module__.split(".")[0]
