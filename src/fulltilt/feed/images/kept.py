"""Samples kept in memory, shared by all decoders: what one has read or decoded, every other copies.

    ┌ header │ a record for each sample: where it lies, how large, the stamp of its files │ … samples, one by one ─┐

It is a memory file without a name (memfd): gone with the last process that holds it, however that ended. Samples are
read and written by system calls, not through a mapping: no page tables for gigabytes, and no fault for each page. A
record is filled in when its sample lies there whole, and ends with a sum of itself: a decoder that is killed while it
writes either leaves nothing but a hole. No room is used twice: what a record points to never changes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fulltilt.machine.memory import read_memory

Bytes = bytes | npt.NDArray[np.uint8]

_ALIGN = 64
_HEADER_BYTES = 4096
_COLUMNS = 14
"""Place, bytes of image and mask, height, width, the stamps of both files, and the sum of these."""
_WORD = (1 << 64) - 1
_LOOK_SECONDS = 1.0


class Mode(IntEnum):
    """What the decoders are to do, from their next task on."""

    NOTHING = 0
    ENCODED = 1
    """Keep the files' bytes here."""
    DECODED = 2
    """Keep pixels and masks here."""
    DISK = 3
    """Copy from the cache in the folder that they know."""


class KeptSample(NamedTuple):
    """Where a sample lies."""

    offset: int
    image_bytes: int
    mask_bytes: int
    height: int
    width: int


class Kept:
    """The memory. The trainer creates it and says what is kept; decoders open it by its file descriptor."""

    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _HEADER_BYTES + count * _COLUMNS * 8)
        self._head: npt.NDArray[np.int64] = np.ndarray((6,), np.int64, self._map)
        self._records: npt.NDArray[np.uint64] = np.ndarray((count, _COLUMNS), np.uint64, self._map, _HEADER_BYTES)
        self._next_look = 0.0

    @classmethod
    def create(cls, count: int) -> Kept:
        """For `count` samples; takes no memory until something is kept."""
        fd = os.memfd_create("fulltilt-kept", os.MFD_CLOEXEC)
        os.ftruncate(fd, _HEADER_BYTES + count * _COLUMNS * 8)
        return cls(fd, count)

    @property
    def mode(self) -> Mode:
        return Mode(int(self._head[0]))

    @property
    def samples(self) -> int:
        """Kept so far."""
        return int(self._head[4])

    @property
    def used_bytes(self) -> int:
        return int(self._head[1])

    def begin(self, mode: Mode, *, budget_bytes: int = 0, floor_bytes: int = 0) -> None:
        """Have the decoders keep samples, in `budget_bytes` and as long as `floor_bytes` of the machine's are free."""
        self._head[1:4] = len(self._map), budget_bytes, floor_bytes
        self._head[0] = mode

    def find(self, number: int, stamp: tuple[int, ...]) -> KeptSample | None:
        """The sample, if it is kept and its files still bear this stamp."""
        *record, total = self._records[number].tolist()
        if tuple(record[5:]) != stamp or sum(record) & _WORD != total:
            return None
        return KeptSample(*record[:5])

    def read_into(self, sample: KeptSample, parts: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Copy a sample's image and mask."""
        wanted = sample.image_bytes + sample.mask_bytes
        views = [_view(part) for part in parts if part.size]
        done = os.preadv(self.fd, views, sample.offset)
        if done != wanted:  # the kernel moves 2 GiB at a time; no sample is so large
            raise OSError(f"{done:,} of {wanted:,} bytes could be copied from memory")

    def read(self, sample: KeptSample) -> tuple[bytes, bytes | None]:
        """A sample's files."""
        image = os.pread(self.fd, sample.image_bytes, sample.offset)
        if not sample.mask_bytes:
            return image, None
        return image, os.pread(self.fd, sample.mask_bytes, sample.offset + sample.image_bytes)

    def keep(
        self, number: int, image: Bytes, mask: Bytes | None, size: tuple[int, int], stamp: tuple[int, ...]
    ) -> bool:
        """Write a sample, if there is room; whether it is kept."""
        if self.find(number, stamp) is not None:  # two epochs meet: another decoder had it at the same time
            return True
        parts = [_view(part) for part in (image, mask) if part is not None and len(part)]
        length = sum(len(part) for part in parts)
        offset = self._reserve(length)
        if offset is None:
            return False
        try:
            if os.pwritev(self.fd, parts, offset) != length:
                return False
        except OSError:  # there is no memory: training goes on without
            self._stop()
            return False
        record = (offset, len(image), 0 if mask is None else len(mask), *size, *stamp)
        with locked(self.fd):
            fresh = not self._records[number].any()
            self._records[number] = (*record, sum(record) & _WORD)
            self._head[4] += fresh
        return True

    def close(self) -> None:
        del self._head, self._records
        self._map.close()
        os.close(self.fd)

    def _reserve(self, size: int) -> int | None:
        now = time.monotonic()
        if now >= self._next_look:  # somebody else may need the memory that was free
            self._next_look = now + _LOOK_SECONDS
            if read_memory().available_bytes < int(self._head[3]):
                self._stop()
        with locked(self.fd):
            offset = int(self._head[1])
            if offset + size > int(self._head[2]):
                return None
            self._head[1] = offset + -(-size // _ALIGN) * _ALIGN
            return offset

    def _stop(self) -> None:
        """Keep what there is, and nothing more."""
        with locked(self.fd):
            self._head[2] = 0


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Nobody else holds the file's first bytes meanwhile; the kernel takes the lock back from a decoder that dies."""
    fcntl.lockf(fd, fcntl.LOCK_EX, 8)
    try:
        yield
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN, 8)


def _view(part: Bytes) -> memoryview:
    return memoryview(part) if isinstance(part, bytes) else part.data
