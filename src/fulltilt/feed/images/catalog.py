"""The files of a source, in a form that decoder processes map instead of receiving: paths in one blob.

A list of a million Python strings would be copied into every process; this is mapped once and shared.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Catalog:
    """Paths by number: images, and masks where the source has them."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        count, self._columns = (int(n) for n in np.ndarray((2,), np.int64, self._map))
        self._ends: npt.NDArray[np.int64] = np.ndarray((count * self._columns + 1,), np.int64, self._map, 16)
        self._blob = 16 + self._ends.nbytes

    @classmethod
    def create(cls, images: Sequence[str], masks: Sequence[str] | None) -> Catalog:
        """Write the paths down."""
        columns = [images] if masks is None else [images, masks]
        encoded = [os.fsencode(path) for row in zip(*columns, strict=True) for path in row]
        ends = np.cumsum([0, *(len(path) for path in encoded)], dtype=np.int64)
        fd = os.memfd_create("fulltilt-catalog", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(np.array([len(images), len(columns)], np.int64).tobytes())
            file.write(ends.tobytes())
            file.write(b"".join(encoded))
        return cls(fd)

    def __len__(self) -> int:
        return (len(self._ends) - 1) // self._columns

    @property
    def digest(self) -> bytes:
        """Differs when any path does."""
        return hashlib.blake2b(self._map, digest_size=16).digest()

    @property
    def has_masks(self) -> bool:
        return self._columns == 2

    def image(self, number: int) -> str:
        return self._path(number * self._columns)

    def mask(self, number: int) -> str:
        return self._path(number * self._columns + 1)

    def _path(self, at: int) -> str:
        start, end = self._blob + int(self._ends[at]), self._blob + int(self._ends[at + 1])
        return os.fsdecode(self._map[start:end])

    def close(self) -> None:
        del self._ends
        self._map.close()
        os.close(self.fd)
