"""The look at a data set: what it costs, whether threads could make its samples, and that it leaves no trace."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.feed.garbage import Owned

from fulltilt.errors import InputError
from fulltilt.feed.datasets import prepare as preparing
from fulltilt.feed.datasets.hosting import Free
from fulltilt.feed.datasets.probing import Probed, digest, look, probe

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Waiting:
    """As a file far away: the lock is released all the time."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self.sleep = sleep

    def __getitem__(self, number: int):
        self.sleep(0.004)
        return torch.full((10,), float(number))


class Seeking(Waiting):
    """One file handle with a position, moved by whoever comes: not for threads."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __getitem__(self, number: int):
        self.position = number
        return super().__getitem__(number) + self.position


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, number: int):
        self.calls += 1
        return self.calls


@pytest.mark.parametrize(
    ("draw", "name"),
    [(random.random, "python"), (np.random.rand, "numpy"), (lambda: torch.rand(()), "torch")],
)
def test_random_numbers_that_threads_would_share_are_seen(draw, name):
    class Drawing:
        def __getitem__(self, number: int):
            draw()
            return number

    assert look(Drawing(), list(range(20)), threads=2).draws == (name,)


def test_a_source_that_waits_is_fit_for_threads(hours):
    found = look(Waiting(hours.sleep), list(range(100)), threads=4)
    assert found.speedup == pytest.approx(4)
    assert found.repeatable
    assert not found.draws
    assert found.bytes_per_sample == 40
    assert found.seconds_per_sample == pytest.approx(0.004)


def test_a_source_that_holds_the_lock_is_not(hours):
    found = look(Waiting(hours.hold), list(range(100)), threads=4)
    assert found.speedup == pytest.approx(1)
    assert found.repeatable


def test_samples_that_threads_spoil_or_that_change_are_seen():
    assert not look(Seeking(), list(range(100)), threads=4).repeatable
    assert not look(Counting(), list(range(100)), threads=4).repeatable


def test_nothing_of_it_is_seen_in_the_trainer():
    data = Counting()
    before = random.getstate(), torch.get_rng_state()
    threads = threading.active_count()
    assert probe(data, range(50), threads=2).seconds_per_sample > 0
    assert data.calls == 0
    assert (random.getstate(), threading.active_count()) == (before[0], threads)
    assert torch.equal(torch.get_rng_state(), before[1])


class Broken:
    def __init__(self, how: str) -> None:
        self.how = how

    def __getitem__(self, number: int):
        match self.how:
            case "raises":
                raise ValueError(f"number {number} is broken")
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hangs":
                time.sleep(60)
            case "cuda":
                raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA, …")


@pytest.mark.parametrize(
    ("how", "problem"),
    [("raises", "ValueError: number 0 is broken"), ("dies", "signal SIGKILL"), ("hangs", "within 0.3 s")],
)
def test_a_data_set_that_can_not_be_looked_at_says_why(how, problem):
    found = probe(Broken(how), range(10), threads=2, limit_seconds=0.3 if how == "hangs" else 20.0)
    assert problem in found.problem
    assert found.bytes_per_sample is None


def test_what_can_not_be_sent_to_a_spawned_process_says_so():
    class Local:
        def __getitem__(self, number: int):
            return number

    assert "can't be sent to another process" in probe(Local(), range(4), threads=2, context="spawn").problem


def test_cuda_in_a_data_set_is_named_with_what_to_do():
    free = Free(cores=2, memory_bytes=1 << 34, shm_bytes=1 << 30)
    with pytest.raises(InputError, match=r"uses CUDA.*leave tensors on the CPU"):
        preparing.prepare(Broken("cuda"), range(10), free=free, batch_size=2, ahead=1)


def test_no_look_is_taken_where_there_are_no_workers():
    free = Free(cores=2, memory_bytes=1 << 34, shm_bytes=1 << 30)
    found = preparing.prepare(Broken("dies"), range(10), free=free, batch_size=2, ahead=1, workers=0)
    assert found.value.workers == 0
    assert found.evidence["probed"] == Probed(problem="nothing is made by workers")


def test_digests_are_of_values():
    sample = {"image": torch.arange(6).reshape(2, 3), "label": (3, np.float32(2)), "name": "a"}
    same = {"image": torch.arange(6).reshape(2, 3).clone(), "label": (3, np.float32(2)), "name": "a"}
    assert digest(sample) == digest(same)
    assert digest(sample) != digest({**same, "image": torch.arange(6).reshape(3, 2)})
    assert digest(sample) != digest({**same, "name": "b"})
    assert digest(lambda: 1)


class Collecting:
    def __getitem__(self, number: int):
        gc.collect()
        return torch.zeros(1)


def test_a_fork_leaves_the_trainers_garbage_alone(tmp_path):
    gc.disable()
    try:
        Owned(tmp_path / "ended")  # a cycle: gone, and not collected
        assert probe(Collecting(), [0, 1, 2], threads=0, context="fork").problem is None
        gc.collect()
    finally:
        gc.enable()
    assert (tmp_path / "ended").read_text() == f"{os.getpid()}\n"
