"""Files that a data set holds open. Workers that are forked share a file's place with each other: one moves it to its
sample, another reads there. Nothing fails; samples are mixed up, now and then."""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from typing import Any

from fulltilt.launch.watch.transforms import datasets, own

_DEEPEST = 3
"""A file in an archive in a list, say."""
_MOST_MEMBERS = 32
_SHARED = ("h5py", "lmdb", "netCDF4", "sqlite3", "tables")
"""Libraries whose files and connections, opened before the fork, are read past Python."""


def open_file(dataset: Any) -> str | None:
    """The first that it would read from, by its attribute: `Records.file`; None where there is none."""
    for one in reversed(list(datasets(dataset))):
        attributes = _attributes(one)
        if any(type(value) is mmap.mmap for value in attributes.values()):
            continue  # the file is there for the memory, which has no place
        for name, value in attributes.items():
            if _holds(value, _DEEPEST):
                return f"{type(one).__name__}.{name}"
    return None


def _holds(value: Any, depth: int) -> bool:
    kind = type(value)  # isinstance asks the object itself, which may be somebody's proxy
    if issubclass(kind, io.IOBase):
        return _has_a_place(value)
    if kind.__module__.partition(".")[0] in _SHARED:
        return bool(value)  # else it is closed
    return depth > 0 and any(_holds(member, depth - 1) for member in _members(value))


def _members(value: Any) -> Iterator[Any]:
    """Of an archive its file, of a small container what stands in it."""
    if type(value) in (dict, list, tuple):
        if len(value) <= _MOST_MEMBERS:
            yield from value.values() if type(value) is dict else value
    elif not issubclass(type(value), type):
        yield from _attributes(value).values()


def _attributes(value: Any) -> dict[str, Any]:
    found = own(value)
    return found if len(found) <= _MOST_MEMBERS else {}


def _has_a_place(file: io.IOBase) -> bool:
    """Of the system's; what lies in memory is each process's own, and a log is not read."""
    try:
        return not file.closed and file.readable() and file.seekable() and file.fileno() >= 0
    except (OSError, ValueError):  # it has no number
        return False
