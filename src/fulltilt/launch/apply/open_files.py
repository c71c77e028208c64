"""Whether a data set keeps a file open: workers that are forked share its place in it, and read each other's samples.

A script without workers, or with one, may do so for years. Found are files of Python's own, and what archives and
connections hold, as far down as changes of a data set are looked for.
"""

from __future__ import annotations

import io
from typing import Any

from fulltilt.launch.apply.changed import DEEPEST, MOST_MEMBERS

_FOREIGN = ("h5py", "lmdb", "sqlite3", "tables", "netCDF4")
"""Packages whose open files and connections are not for two processes."""
_INSIDE_MEMORY = (io.BytesIO, io.StringIO)


def open_file_in(dataset: Any) -> str | None:
    """The name of a type that keeps one open; None where there is none."""
    return _found(dataset, DEEPEST + 1, set())


def _found(value: Any, depth: int, known: set[int]) -> str | None:
    if depth <= 0 or id(value) in known or isinstance(value, str | bytes | int | float | type | type(None)):
        return None
    known.add(id(value))
    if isinstance(value, io.IOBase):
        return None if isinstance(value, _INSIDE_MEMORY) or value.closed else type(value).__name__
    if type(value).__module__.split(".")[0] in _FOREIGN:
        return type(value).__name__
    if isinstance(value, dict | list | tuple | set):
        members = list(value.values()) if isinstance(value, dict) else list(value)
        members = members if len(members) <= MOST_MEMBERS else []
    else:
        own = getattr(value, "__dict__", None)
        members = list(own.values()) if isinstance(own, dict) else []
    inner = (_found(member, depth - 1, known) for member in members)
    return next((name for name in inner if name is not None), None)
