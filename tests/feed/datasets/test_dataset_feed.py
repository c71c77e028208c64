"""A data set with a number of workers that is looked for while training runs: real workers, a real loop."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fulltilt.errors import InputError
from fulltilt.feed import feed
from fulltilt.feed.busy import BusyMeter
from fulltilt.feed.datasets.crew import Steering, bottleneck
from fulltilt.machine.cores import read_cores

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Far(Dataset):
    """A file that takes its time to come: more workers than cores pay."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        time.sleep(self.seconds)
        return number


class Augmented(Dataset):
    """Draws its own random numbers, as transforms do."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int):
        return number, np.random.rand(), torch.rand(())


@pytest.fixture
def hasty(monkeypatch):
    """Measurements that take a tenth of the time."""
    monkeypatch.setattr("fulltilt.feed.tuner.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr("fulltilt.feed.tuner.MEASURE_SECONDS", 0.25)


def train_until_settled(it, step: Callable[[], None], epochs: int = 100) -> list[list[int]]:
    seen = []
    for _ in range(epochs):
        seen.append([])
        for batch in it:
            step()
            seen[-1] += batch.tolist()
        if it.decision is not None:
            return seen
    raise AssertionError("it did not settle")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_more_workers_than_cores_where_they_wait_and_every_sample_once(hasty, kind):
    with feed(Far(256, 0.004), batch_size=4, shuffle=True, seed=5, device="cpu", worker_kind=kind) as it:
        seen = train_until_settled(it, lambda: time.sleep(0.002))
        assert seen == [it.order.permutation(epoch).tolist() for epoch in range(len(seen))]
        numbers = [workers for workers, *_ in it.decision.evidence["trials"]]
        assert numbers[0] == max(1, read_cores().usable - 1)
        assert it.decision.value > numbers[0]
        assert it.decision.value <= 4 * read_cores().usable
        stats = it.stats()
        assert stats["workers"] == it.decision.value
        assert stats["worker_kind"] == kind
        for _ in it:  # the workers that were tried last leave when they have given what they had taken
            pass
        assert len(it._crew.legs.pids) == (it.decision.value if kind == "processes" else 0)


def test_a_waiting_source_is_given_threads_without_being_asked_for(hours):
    class Waiting(Far):
        def __getitem__(self, number: int):
            hours.sleep(self.seconds)
            return number

    with feed(Waiting(64, 0.01), batch_size=4, device="cpu") as it:
        assert it.hosting.value.kind == "threads", it.hosting.reason
        assert "the interpreter's lock is mostly released" in it.hosting.reason


def test_a_number_chosen_by_hand_stays():
    with feed(Far(128, 0.0005), batch_size=4, device="cpu", worker_kind="threads") as it:
        it.resize(3)
        assert it.decision is None
        for _ in range(2):
            assert [n for batch in it for n in batch.tolist()] == list(range(128))
        assert it.stats()["workers"] == 3
        with pytest.raises(InputError, match=r"resize\(-1\): a data set has 0 workers"):
            it.resize(-1)
        assert it.stats()["workers"] == 3


def test_a_loop_that_does_not_wait_gives_workers_back():
    loader = DataLoader(Far(128, 0.0), batch_size=4, num_workers=2, persistent_workers=True)
    with feed(loader, num_workers="auto", device="cpu") as it:
        # Real workers, and a clock that steps alone move on: training is as fast with any number.
        now = [0.0]
        it._crew._steering = Steering(it._crew._steering.tuner, it._crew.legs, clock=lambda: now[0])

        def step() -> None:
            now[0] += 0.1

        seen = train_until_settled(it, step)
        assert all(epoch == list(range(128)) for epoch in seen)
        assert it.decision.value <= 1
        assert it.stats()["workers"] == it.decision.value


@pytest.mark.parametrize("start", [1, 2])
def test_random_numbers_are_the_same_for_a_seed_whatever_the_workers(start):
    def epoch(seed: int, workers: int):
        with feed(Augmented(), batch_size=4, shuffle=True, seed=seed, device="cpu", num_workers=workers) as it:
            return [torch.stack([part.double() for part in batch]) for batch in it]

    first, second, other = epoch(3, start), epoch(3, 3 - start), epoch(4, start)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_trainer_s_random_numbers_are_left_alone():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    with feed(Augmented(), batch_size=4, device="cpu", num_workers=1) as it:
        list(it)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


@pytest.mark.parametrize("loader", [False, True])
def test_a_feed_that_is_forgotten_ends_its_workers(loader):
    if loader:
        it = feed(DataLoader(Augmented(), batch_size=2, num_workers=1), num_workers="auto", device="cpu")
    else:
        it = feed(Augmented(), batch_size=2, num_workers=1, device="cpu")
    loop = iter(it)
    next(loop)
    (pid,) = it._crew.legs.pids
    del loop, it
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_cores_in_use_are_those_between_two_looks():
    now, spent = [0.0], {os.getpid(): 5.0}
    meter = BusyMeter(lambda: dict(spent), lambda: now[0])
    now[0], spent[os.getpid()] = 2.0, 8.0
    assert meter.cores() == 1.5
    spent[1] = 0.0
    assert meter.cores() is None, "another worker has come"


def test_who_is_slowest():
    assert bottleneck(0.01, 1.0) == "step"
    assert bottleneck(0.5, 0.9) == "computing"
    assert bottleneck(0.5, 0.1) == "reading"
    assert bottleneck(0.5, None) == "feed"
