"""Samples made up for tests: a series of utilisations and what goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fulltilt.machine.sample import CpuSample, GpuSample, Sample

QUIET = CpuSample(util=5.0, iowait=0.0, cores=(6.0, 4.0, 5.0, 5.0))


def series(utils: Iterable[float | None], *, interval: float = 1.0, cpu: CpuSample = QUIET, **gpu: Any) -> list[Sample]:
    """One GPU whose utilisation goes through `utils`; its other figures stay as given."""
    return [
        Sample(t=(place + 1) * interval, gpus=(GpuSample(index=0, util=util, **gpu),), cpu=cpu)
        for place, util in enumerate(utils)
    ]
