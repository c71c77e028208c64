"""Workers of a DataLoader: forks that leave the trainer's garbage alone from their first moment on."""

from __future__ import annotations

import gc
import multiprocessing.util
import os

from tests.feed.garbage import Owned
from torch.utils.data import DataLoader

from fulltilt.feed.datasets.shelf import WorkerInit


class Early:
    """What it does in a fork comes before all that torch does there."""

    def collect(self) -> None:
        gc.collect()


def test_garbage_that_is_collected_before_a_worker_begins(tmp_path):
    early = Early()
    multiprocessing.util.register_after_fork(early, Early.collect)
    loader = DataLoader(range(4), 2, num_workers=1, worker_init_fn=WorkerInit(), multiprocessing_context="fork")
    gc.disable()
    try:
        Owned(tmp_path / "ended")  # a cycle: gone, and not collected
        assert len(list(loader)) == 2
        gc.collect()
    finally:
        gc.enable()
    assert (tmp_path / "ended").read_text() == f"{os.getpid()}\n"
