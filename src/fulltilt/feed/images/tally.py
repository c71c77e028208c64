"""What the decoders have done so far: samples, bytes and seconds of each stage, in memory that outlives them.

Each decoder adds to a line of its own, so nobody waits for anybody; the trainer adds the lines up when it is asked.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over all decoders, the ones that have ended included. Seconds are theirs, not the wall's."""

    read_samples: float = 0.0
    """Samples whose files were read."""
    read_bytes: float = 0.0
    read_seconds: float = 0.0
    cold_samples: float = 0.0
    """Of those, the ones that came from where the files are and not from the system's page cache."""
    cold_seconds: float = 0.0
    looked_again: float = 0.0
    """Cold files that were opened once more, to see whether the system keeps them."""
    there_again: float = 0.0
    """Those that it does keep."""
    decode_samples: float = 0.0
    decode_bytes: float = 0.0
    """Of the pixels and masks."""
    decode_seconds: float = 0.0
    copy_samples: float = 0.0
    """Samples that were copied from a cache instead of being read and decoded."""
    copy_seconds: float = 0.0

    def rate(self, workers: int) -> float | None:
        """Samples a second that so many decoders would give if they always had work; None where none was made."""
        samples = self.decode_samples + self.copy_samples
        seconds = self.read_seconds + self.decode_seconds + self.copy_seconds
        return workers * samples / seconds if samples and seconds > 0 else None

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) - getattr(earlier, name) for name in NAMES})


NAMES = tuple(field.name for field in fields(Counts))
_READ, _COLD, _AGAIN, _DECODE, _COPY = (
    NAMES.index(name) for name in ("read_samples", "cold_samples", "looked_again", "decode_samples", "copy_samples")
)


class Tally:
    """The table: a line for each decoder, a column for each count."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        lines = len(self._map) // (8 * len(NAMES))
        self._lines: npt.NDArray[np.float64] = np.ndarray((lines, len(NAMES)), np.float64, self._map)

    @classmethod
    def create(cls, workers: int) -> Tally:
        fd = os.memfd_create("fulltilt-tally", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(workers, 1) * 8 * len(NAMES))
        return cls(fd)

    def line(self, worker: int) -> Line:
        """Where a decoder writes; its successor goes on from there."""
        return Line(self._lines[worker])

    def total(self) -> Counts:
        return Counts(**dict(zip(NAMES, self._lines.sum(0).tolist(), strict=True)))

    def close(self) -> None:
        del self._lines
        self._map.close()
        os.close(self.fd)


class Line:
    """One decoder's counts."""

    def __init__(self, counts: npt.NDArray[np.float64]) -> None:
        self._counts = counts

    def read(self, size: int, seconds: float, *, cold: bool) -> None:
        self._add(_READ, 1, size, seconds)
        if cold:
            self._add(_COLD, 1, seconds)

    def looked_again(self, *, there: bool) -> None:
        self._add(_AGAIN, 1, there)

    def decoded(self, size: int, seconds: float) -> None:
        self._add(_DECODE, 1, size, seconds)

    def copied(self, seconds: float) -> None:
        self._add(_COPY, 1, seconds)

    def _add(self, first: int, *figures: float) -> None:
        for at, figure in enumerate(figures, first):
            self._counts[at] += figure
