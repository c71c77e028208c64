"""A slot: the memory of one batch, written by decoder processes and read by the trainer.

    ┌ used, capacity │ index, offset, mask offset, size, length, turn, status of each │ … ┬ images, masks, files ─┐

It is anonymous shared memory (memfd): no name in /dev/shm and none of its size limit, gone with the last process that
maps it, however that ended. Who wants to write takes room first (`reserve`), under a lock that the kernel takes back
when its holder dies. Tables and pixels lie together, so that one copy moves the whole batch to a device.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from enum import IntEnum

import numpy as np
import numpy.typing as npt

_ALIGN = 64
"""Every image begins on a cache line."""


class Status(IntEnum):
    """What has become of a sample."""

    WAITING = 0
    DONE = 1
    FAILED = 2
    NO_ROOM = 3
    """The slot was full: the trainer makes it larger and asks again."""
    WAITING_AS_FILE = 4
    """Only to be read: the GPU decodes it, if it is a file that the GPU can decode."""


class Slot:
    """One batch's memory. The trainer creates it; a decoder opens it by its file descriptor."""

    def __init__(self, fd: int, samples: int) -> None:
        self.fd, self.samples = fd, samples
        self.start = _start(samples)
        self._open()

    @classmethod
    def create(cls, samples: int, capacity: int) -> Slot:
        """New memory for `samples` samples and `capacity` bytes of pixels."""
        fd = os.memfd_create("fulltilt-slot", os.MFD_CLOEXEC)
        try:
            _size(fd, samples, capacity)
            return cls(fd, samples)
        except BaseException:
            os.close(fd)
            raise

    def _open(self) -> None:
        # Populated at once: pages that are faulted in one by one make a decoder's first writes a quarter slower.
        self.memory = mmap.mmap(self.fd, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        n, m = self.samples, self.memory
        self._head: npt.NDArray[np.int64] = np.ndarray((2,), np.int64, m)
        self.index: npt.NDArray[np.int64] = np.ndarray((n,), np.int64, m, 16)
        self.offset: npt.NDArray[np.int64] = np.ndarray((n,), np.int64, m, 16 + 8 * n)
        self.mask_offset: npt.NDArray[np.int64] = np.ndarray((n,), np.int64, m, 16 + 16 * n)
        self.size: npt.NDArray[np.int32] = np.ndarray((n, 2), np.int32, m, 16 + 24 * n)
        self.length: npt.NDArray[np.int64] = np.ndarray((n,), np.int64, m, 16 + 32 * n)
        """Bytes of a file that the GPU is to decode; 0 where pixels lie."""
        self.turn: npt.NDArray[np.int32] = np.ndarray((n,), np.int32, m, 16 + 40 * n)
        """The EXIF orientation of such a file."""
        self.status: npt.NDArray[np.int32] = np.ndarray((n,), np.int32, m, 16 + 44 * n)
        self.capacity = int(self._head[1])
        self.data: npt.NDArray[np.uint8] = np.ndarray((self.capacity,), np.uint8, m, self.start)

    @property
    def used(self) -> int:
        """Bytes of the data that are taken."""
        return int(self._head[0])

    def begin(self, indices: npt.NDArray[np.int64], *, files: int = 0) -> None:
        """Empty the slot and write down which samples it is to hold, the last ones as files."""
        self._head[0] = 0
        n = len(indices)
        self.index[:n] = indices
        self.status[: n - files] = Status.WAITING
        self.status[n - files : n] = Status.WAITING_AS_FILE
        self.length[:n] = 0

    def reserve(self, size: int) -> int | None:
        """Room for `size` bytes, or None when there is not enough."""
        fcntl.lockf(self.fd, fcntl.LOCK_EX, 8)
        try:
            offset = self.used
            if offset + size > self.capacity:
                return None
            self._head[0] = offset + -(-size // _ALIGN) * _ALIGN
            return offset
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 8)

    def grow(self, capacity: int) -> None:
        """The trainer makes more room; what is there stays, at another address: arrays taken before are void."""
        _size(self.fd, self.samples, capacity)
        self._close_map()
        self._open()

    def refresh(self) -> None:
        """A decoder follows when the trainer has made more room."""
        if int(self._head[1]) != self.capacity:
            self._close_map()
            self._open()

    def close(self) -> None:
        """Unmap and close. The arrays must not be used afterwards."""
        self._close_map()
        os.close(self.fd)

    def _close_map(self) -> None:
        del self._head, self.index, self.offset, self.mask_offset, self.size
        del self.length, self.turn, self.status, self.data
        self.memory.close()
        del self.memory


def _start(samples: int) -> int:
    """Where pixels begin: after the tables, on a page of their own."""
    return -(-(16 + 48 * samples) // mmap.PAGESIZE) * mmap.PAGESIZE


def _size(fd: int, samples: int, capacity: int) -> None:
    os.ftruncate(fd, _start(samples) + capacity)
    os.pwrite(fd, np.int64(capacity).tobytes(), 8)
