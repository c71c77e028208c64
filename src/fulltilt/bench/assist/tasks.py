"""Tasks that do nothing: what the queue itself costs, and whether it forgets."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import psutil

from fulltilt.assist.assisted import CPUAssistedTraining, workers_for
from fulltilt.bench.assist.figures import Many, Tasks

_KEPT = 1000
"""Futures that are waited for together."""


def measure_tasks(*, tasks: int, rounds: int) -> Tasks:
    """In turns, so that both see the same neighbours."""
    workers = workers_for("assist", "auto")
    ours, theirs = [], []
    with CPUAssistedTraining(workers) as assist, ThreadPoolExecutor(workers) as executor:
        for _ in range(rounds):
            ours.append(_rate(assist.submit, tasks))
            theirs.append(_rate(executor.submit, tasks))
    return Tasks(tasks=tasks, ours_per_second=median(ours), theirs_per_second=median(theirs), workers=workers)


def measure_many(*, tasks: int) -> Many:
    """Memory after a tenth and after all of them."""
    began = time.perf_counter()
    early = 0
    with CPUAssistedTraining() as assist:
        for done in range(0, tasks, _KEPT):
            futures = [assist.submit(_trivial) for _ in range(_KEPT)]
            for future in futures:
                future.result()
            if not early and done >= tasks // 10:
                early = _memory()
        del futures, future
        grown = _memory() - early
    return Many(tasks=tasks, seconds=time.perf_counter() - began, grown_bytes=grown)


def _trivial() -> int:
    return 1


def _rate(submit: Callable[..., Any], tasks: int) -> float:
    began = time.perf_counter()
    futures = [submit(_trivial) for _ in range(tasks)]
    for future in futures:
        future.result()
    return tasks / (time.perf_counter() - began)


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
