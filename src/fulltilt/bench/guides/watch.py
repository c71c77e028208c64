"""The GPU as the monitor reads it, from outside the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Self

from fulltilt.machine.sample import Sample
from fulltilt.machine.sampling import Sampling

Stretch = tuple[float, float]

INTERVAL_SECONDS = 0.5
_LAG_SECONDS = 1.0
"""The driver's utilisation is a mean of up to a second: readings this soon after the beginning are of before it."""
_APART_SECONDS = 0.05
_LEAST_READINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Percent of the time in which some kernel ran."""

    mean: float
    std: float
    """Points, over the readings."""
    readings: int
    series: tuple[float, ...] = ()
    """The readings, one after the other: what a mean and a deviation hide."""


class Watch:
    """Reads all GPUs twice a second, on a thread, while it is open."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._sampling = Sampling(self._samples.append, INTERVAL_SECONDS)

    def utilisation(self, stretches: Sequence[Stretch], uuid: str | None) -> Utilisation | None:
        """Over stretches of the machine's monotonic clock, of the GPU with this UUID."""
        zero = self._sampling.zero
        return utilisation(self._samples, [(began - zero, ended - zero) for began, ended in stretches], uuid)

    def __enter__(self) -> Self:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampling.close()


def utilisation(samples: Sequence[Sample], stretches: Sequence[Stretch], uuid: str | None) -> Utilisation | None:
    """Mean and standard deviation over the stretches; None where there were too few readings to say.

    A UUID is compared without its `GPU-`, which torch leaves out; without one the first GPU is meant. Only a GPU's
    first reading carries it.
    """
    label = _label(samples, uuid)
    found = [
        gpu.util
        for began, ended in joined(stretches)
        for sample in list(samples)
        if began + _LAG_SECONDS <= sample.t <= ended
        for gpu in sample.gpus
        if gpu.label == label and gpu.util is not None
    ]
    if len(found) < _LEAST_READINGS:
        return None
    return Utilisation(mean=fmean(found), std=pstdev(found), readings=len(found), series=tuple(found))


def joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those as one that have nothing but an epoch's end between them: no validation, no checkpoint."""
    found: list[Stretch] = []
    for began, ended in stretches:
        near = found and began - found[-1][1] < _APART_SECONDS
        found.append((found.pop()[0] if near else began, ended))
    return found


def _label(samples: Sequence[Sample], uuid: str | None) -> str | None:
    named = [gpu for sample in list(samples)[:1] for gpu in sample.gpus]
    wanted = None if uuid is None else uuid.removeprefix("GPU-")
    return next((gpu.label for gpu in named if wanted in (None, (gpu.uuid or "").removeprefix("GPU-"))), None)
