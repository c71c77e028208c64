"""Folders as a script sees them: the entries of one, and paths relative to one that it has opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Self


class Entries:
    """What `os.scandir` gives: an iterator that can be closed."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(list(entries))

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class Entry:
    """What `os.scandir` gives for each name, under the path that was asked for."""

    def __init__(self, entry: os.DirEntry[Any], folder: Any) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = entry.name if isinstance(folder, int) else os.path.join(os.fspath(folder), entry.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


def path_of(descriptor: int) -> str | None:
    """Of an open file or folder; None where the system does not tell, or it has none any more."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if path.startswith(os.sep) and os.path.lexists(path) else None


def within(folder: int, path: Any) -> Any:
    """`path`, which is relative to an open folder; None where that can't be told."""
    if isinstance(path, int) or not os.fspath(path) or os.path.isabs(path):
        return path
    whole = path_of(folder)
    if whole is None:
        return None
    return os.path.join(os.fsencode(whole) if isinstance(os.fspath(path), bytes) else whole, path)
