"""Files read by a decoder: their bytes, the stamp that belongs to them, and whether they had to come from the disk."""

from __future__ import annotations

import os
from typing import NamedTuple

from fulltilt.cache.keys import is_settled, stamp_of

_UNKNOWN_COLD_SECONDS, _UNKNOWN_COLD_RATE = 1e-3, 0.5e9
"""Where the system can't be asked: what takes longer than this to come was not in memory."""


class FileRead(NamedTuple):
    """A file's bytes."""

    data: bytes
    stamp: tuple[int, ...] | None
    """Size, times and inode that belong to them; None when it changed meanwhile, or so lately that it may again."""
    cold: bool | None
    """Not in the page cache before; None where the file system can't say."""


def read_file(path: str, *, stamped: bool = False) -> FileRead:
    """Read a file whole. `stamped` looks at it a second time, to be sure that the stamp is of these bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(fd)
        size = before.st_size
        cold = _is_cold(fd, size)
        data = os.read(fd, size)
        while len(data) < size and (more := os.read(fd, size - len(data))):
            data += more
        stamp = None
        if stamped and len(data) == size and is_settled(before) and stamp_of(os.fstat(fd)) == stamp_of(before):
            stamp = stamp_of(before)
        return FileRead(data, stamp, cold)
    finally:
        os.close(fd)


def is_in_memory(path: str) -> bool | None:
    """Whether a file that was read a moment ago would now come from memory; None where the system can't say.

    To be asked once: where the answer is no, Linux begins to read the file ahead.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone meanwhile
        return None
    try:
        cold = _is_cold(fd, os.fstat(fd).st_size)
        return None if cold is None else not cold
    finally:
        os.close(fd)


def seems_cold(size: int, seconds: float) -> bool:
    """The guess where the file system can't say: memory is not so slow."""
    return seconds > _UNKNOWN_COLD_SECONDS + size / _UNKNOWN_COLD_RATE


def _is_cold(fd: int, size: int) -> bool | None:
    """Whether a file's end is not in the page cache: one byte of it is asked for without waiting."""
    if not size:
        return False
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(fd, [bytearray(1)], size - 1, os.RWF_NOWAIT) == 0
    except BlockingIOError:
        return True
    except OSError:  # this file system does not know the question
        return None
