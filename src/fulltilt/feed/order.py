"""Which samples, in which order: pure arithmetic, the same on every rank.

An epoch is one permutation of the data set, a function of (seed, epoch). All ranks walk through it together: a step
takes the next world × batch samples, and each rank its own part of them. So the position in an epoch is one number, the
samples taken by all ranks, and an epoch can be resumed at another batch size or world size with none repeated or lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulltilt.errors import InputError

Indices = npt.NDArray[np.int64]


def random_words(seed: int, stream: int, counter: tuple[int, int, int] = (0, 0, 0)) -> np.random.Philox:
    """Random words that follow from these numbers alone; a seed may be any whole number, also a negative one."""
    # As uint64: NumPy makes floats of a list with a number from 2**63 on, and of many seeds one.
    key = np.array([int(seed) & (1 << 64) - 1, stream], np.uint64)
    return np.random.Philox(key=key, counter=[*counter, 0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """What one rank takes in one step."""

    epoch: int
    indices: Indices
    position: int
    """Samples of the epoch that all ranks have taken after this step."""
    last: bool
    """Nothing of the epoch is left."""
    start: int
    """Samples of the epoch that all ranks had taken before this step."""
    permutation: Indices
    """The whole epoch's, of which this step is a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of a data set of `length` samples for one rank."""

    length: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    parts: int = 1
    """Samples that belong to one thing, such as clips of a video; they follow each other in the data set."""
    together: int = 1
    """So many of its parts, drawn anew in each epoch, stay side by side when all is shuffled."""
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError("the source holds no samples")
        if not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size!r} must be a whole number, at least 1")
        if not isinstance(self.seed, int | np.integer):
            raise InputError(f"seed={self.seed!r} must be a whole number")
        if not 0 <= self.rank < self.world:
            raise InputError(f"rank={self.rank} must be from 0 to {self.world - 1} (world size {self.world})")
        if self.drop_last and self.length < self.batch_size * self.world:
            raise InputError(
                f"drop_last leaves nothing: {self.length} samples are fewer than one step of "
                f"{self.world} × {self.batch_size}; lower batch_size or set drop_last=False"
            )

    @property
    def largest_step(self) -> int:
        """The most samples that a step has for one rank: a batch, or all that there are."""
        return min(self.batch_size, -(-self.length // self.world))

    def steps(self, position: int = 0) -> int:
        """Steps from a position to the epoch's end."""
        left, each = max(self.length - position, 0), self.batch_size * self.world
        return left // each if self.drop_last else -(-left // each)

    def permutation(self, epoch: int) -> Indices:
        """The epoch's samples in order."""
        if not self.shuffle:
            return np.arange(self.length, dtype=np.int64)
        # Sorting raw words, which NumPy keeps the same for ever; its shuffles may change from version to version.
        draws = random_words(self.seed, epoch)
        words = draws.random_raw(self.length)
        if self.together == 1:
            return np.argsort(words, kind="stable").astype(np.int64, copy=False)
        whole = np.arange(self.length) // self.parts
        inside = np.lexsort((words, whole))  # each thing's parts among themselves
        place = np.arange(self.length) - whole * self.parts
        group = whole * self.parts + place // self.together
        keys = draws.random_raw(self.length)[group]
        return inside[np.lexsort((group, keys))].astype(np.int64, copy=False)

    def epoch(self, epoch: int, position: int = 0) -> Iterator[Step]:
        """The steps of an epoch from a position on."""
        permutation = self.permutation(epoch)
        each = self.batch_size * self.world
        left = self.steps(position)
        while left:
            left -= 1
            start, position = position, min(position + each, self.length)
            yield Step(
                epoch=epoch,
                indices=self._share(permutation[start:position], permutation),
                position=position,
                last=not left,
                start=start,
                permutation=permutation,
            )

    def _share(self, taken: Indices, permutation: Indices) -> Indices:
        """This rank's part; a last step that can't be shared out evenly is filled up from the epoch's beginning."""
        missing = -len(taken) % self.world
        if missing:
            taken = np.concatenate([taken, np.resize(permutation, missing)])
        share = len(taken) // self.world
        return taken[self.rank * share : (self.rank + 1) * share]
