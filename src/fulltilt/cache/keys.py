"""What a sample is to the cache: its name, the stamp that its files bear now, and its content.

An entry is found by name and served only when the stamp is the one that the files had while their bytes were read:
size, inode, and the times of the last change to content (mtime) and to anything at all (ctime). mtime can be set to
any value, and tools that copy do so; ctime can't, so a rewrite that keeps size and mtime still shows. Entries also know
a hash of the bytes: a file that was only moved or touched is recognised without decoding it again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

Path = str | os.PathLike[str]
Read = TypeVar("Read")
_U64: Final = (1 << 64) - 1
NO_FILE: Final = (0, 0, 0, 0)
_TICK_NS: Final = 50_000_000
"""More than the granularity of a file's times where they have fractions of a second (the kernel's tick, 1 to 10 ms)."""
_WHOLE_SECONDS_NS: Final = 2_000_000_000
"""The same where they have none: FAT counts in steps of two seconds."""
_ATTEMPTS: Final = 4
_PIECE: Final = 1 << 20


class Key(NamedTuple):
    """Where to look, and what must still hold."""

    name: bytes
    """Hash of the settings and the paths."""
    stamp: tuple[int, ...]
    """Size, mtime, ctime and inode of the image, then of the mask (zeros without one)."""


def key_of(image: Path, mask: Path | None, settings: bytes) -> Key:
    """The key of a sample as its files are now; OSError when one is gone. `settings`: their digest."""
    stamp = stamp_of(os.stat(image)) + (NO_FILE if mask is None else stamp_of(os.stat(mask)))
    return Key(name_of(image, mask, settings), stamp)


def name_of(image: Path, mask: Path | None, settings: bytes) -> bytes:
    """Absolute paths: where a build was started from does not matter."""
    hashed = hashlib.blake2b(settings, digest_size=16)
    hashed.update(os.fsencode(os.path.abspath(image)))
    if mask is not None:
        hashed.update(b"\0" + os.fsencode(os.path.abspath(mask)))
    return hashed.digest()


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """No device number: it changes with every mount. Negative times (before 1970) wrap."""
    values = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return tuple(value & _U64 for value in values)


def content_of(image: bytes, mask: bytes | None, settings: bytes) -> bytes:
    """Hash of everything that the pixels depend on."""
    hashed = _hash_of(len(image), None if mask is None else len(mask), settings)
    hashed.update(image)
    hashed.update(mask or b"")
    return hashed.digest()


def _hash_of(image_bytes: int, mask_bytes: int | None, settings: bytes) -> hashlib.blake2b:
    """Before the content itself."""
    hashed = hashlib.blake2b(settings, digest_size=16)
    hashed.update(image_bytes.to_bytes(8, "little", signed=True))
    hashed.update((-1 if mask_bytes is None else mask_bytes).to_bytes(8, "little", signed=True))
    return hashed


def read_steadily(path: Path) -> tuple[bytes, tuple[int, ...]]:
    """A file's bytes and the stamp that belongs to them.

    Times move in ticks: a file changed twice within one looks changed once. So a file that changed within the last tick
    is left to rest until that is over, and one that changes while it is read is read again.
    """
    return _steadily(path, lambda fd, size: (data := _all(fd, size), len(data)))


def hash_steadily(path: Path, settings: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The content (as `content_of` has it) and the stamp of a file that need not fit into memory."""

    def read(fd: int, size: int) -> tuple[bytes, int]:
        hashed, at = _hash_of(size, None, settings), 0
        while at <= size and (part := os.pread(fd, min(_PIECE, size + 1 - at), at)):
            hashed.update(part)
            at += len(part)
        return hashed.digest(), at

    return _steadily(path, read)


def _steadily(path: Path, read: Callable[[int, int], tuple[Read, int]]) -> tuple[Read, tuple[int, ...]]:
    """What `read` makes of an open file of a size, saying how many bytes there were; and their stamp."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            before = os.fstat(fd)
            if (rest_ns := _unsettled_ns(before)) > 0:
                time.sleep(rest_ns / 1e9)
                continue  # it may have changed meanwhile
            found, count = read(fd, before.st_size)
            if stamp_of(os.fstat(fd)) == stamp_of(before) and count == before.st_size:
                return found, stamp_of(before)
        raise OSError(f"{os.fspath(path)} keeps changing while it is read: is it still being written?")
    finally:
        os.close(fd)


def is_settled(status: os.stat_result) -> bool:
    """Whether a further change would show in the file's times: the last one is more than a tick ago."""
    return _unsettled_ns(status) <= 0


def _unsettled_ns(status: os.stat_result) -> int:
    tick = _TICK_NS if status.st_ctime_ns % 1_000_000_000 else _WHOLE_SECONDS_NS
    return tick - max(0, time.time_ns() - status.st_ctime_ns)


def _all(fd: int, size: int) -> bytes:
    """From the beginning; one byte more than expected shows that the file has grown."""
    parts, at = [], 0
    while at <= size and (part := os.pread(fd, size + 1 - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]
