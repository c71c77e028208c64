"""Trivial tasks: no slower than the standard library's threads, in the same minute on the same machine."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from fulltilt import CPUAssistedTraining

TASKS, ROUNDS = 5_000, 7


def trivial():
    return 1


def rate(submit) -> float:
    began = time.perf_counter()
    futures = [submit(trivial) for _ in range(TASKS)]
    assert all(future.result() == 1 for future in futures)
    return TASKS / (time.perf_counter() - began)


def test_trivial_tasks_keep_up_with_concurrent_futures(record_property):
    ours, theirs = [], []
    with CPUAssistedTraining(2) as assist, ThreadPoolExecutor(2) as executor:
        for _ in range(ROUNDS):  # in turns, so that both see the same neighbours
            ours.append(rate(assist.submit))
            theirs.append(rate(executor.submit))
    mine, others = statistics.median(ours), statistics.median(theirs)
    record_property("tasks_per_second", round(mine))
    record_property("concurrent_futures_tasks_per_second", round(others))
    print(f"{mine:.0f} tasks/s, concurrent.futures {others:.0f}, medians of {ROUNDS}")
    assert mine >= min(100_000, others / 1.5)
