"""Threads that compute with one core each leave everybody else's number of threads as it was."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from fulltilt.machine.one_core import compute_with_one_core


def test_threads_that_begin_together_leave_later_ones_as_many_cores_as_before():
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        for _ in range(50):
            with ThreadPoolExecutor(8, initializer=compute_with_one_core) as pool:
                assert set(pool.map(lambda _: torch.get_num_threads(), range(64))) == {1}
            later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            later.start()
            later.join()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(found) == {2}
