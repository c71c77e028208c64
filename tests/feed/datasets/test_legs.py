"""Workers that come and go: every sample once and in order, whatever is changed or killed meanwhile."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from fulltilt.errors import DecodeError, WorkerError
from fulltilt.feed.datasets.leg import Work
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.datasets.shelf import Request, batch_seed

# Python 3.12 warns of forking beside threads, which torch's workers always do.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Numbers:
    def __init__(self, deadly: int = -1) -> None:
        self.deadly = deadly

    def __getitem__(self, number: int):
        if number == self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        return number


class Drawing:
    """Three random numbers a sample, one from each generator that a process shares."""

    def __getitem__(self, number: int):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def stream(batches: int, size: int = 2):
    return (Request(list(range(k * size, (k + 1) * size)), batch_seed(1, 0, k)) for k in range(batches))


def flat(batches) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_no_sample_is_lost_repeated_or_out_of_order_when_the_number_changes(kind):
    legs = Legs(Work(dataset=Numbers(), kind=kind, varies=True), 2)
    legs.begin(stream(60))
    seen = []
    for k, batch in enumerate(legs):
        seen += batch.tolist()
        if k in (3, 4, 20, 40):
            legs.resize({3: 3, 4: 1, 20: 0, 40: 2}[k])
    assert seen == list(range(120))
    assert legs.wanted == 2
    legs.close()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 40), st.integers(1, 3), st.dictionaries(st.integers(0, 39), st.integers(0, 5), max_size=8))
def test_threads_may_change_at_any_batch(batches, depth, changes):
    legs = Legs(Work(dataset=Numbers(), kind="threads", depth=depth), 2)
    legs.begin(stream(batches))
    seen = []
    for k, batch in enumerate(legs):
        seen += batch.tolist()
        legs.resize(changes.get(k, legs.wanted))
    legs.close()
    assert seen == list(range(2 * batches))


def test_a_stream_that_begins_anew_drops_what_was_under_way_and_keeps_the_workers():
    legs = Legs(Work(dataset=Numbers()), 2)
    next(legs.begin(stream(20)))
    pids = legs.pids
    assert flat(legs.begin(stream(5))) == list(range(10))
    assert legs.pids == pids
    again = Legs(Work(dataset=Numbers()), 2, lasting=False)
    next(again.begin(stream(20)))
    pids = again.pids
    assert flat(again.begin(stream(5))) == list(range(10))
    assert not set(pids) & set(again.pids)
    legs.close()
    again.close()
    assert not legs.pids


@pytest.mark.parametrize("workers", [1, 2])
def test_random_numbers_follow_from_the_batch_and_not_from_who_makes_it(workers):
    legs = Legs(Work(dataset=Drawing()), workers)
    found = list(legs.begin(stream(6)))
    legs.close()
    expected = Legs(Work(dataset=Drawing()), 3)
    assert all(torch.equal(a, b) for a, b in zip(found, expected.begin(stream(6)), strict=True))
    expected.close()
    assert len({tuple(sample.tolist()) for batch in found for sample in batch}) == 12


def test_a_killed_worker_is_replaced_and_what_it_had_taken_is_made_again(caplog):
    legs = Legs(Work(dataset=Numbers()), 2)
    seen = []
    with caplog.at_level(logging.WARNING, "fulltilt.feed"):
        for k, batch in enumerate(legs.begin(stream(30))):
            seen += batch.tolist()
            if k == 2:
                os.kill(legs.pids[1], signal.SIGKILL)
    legs.close()
    assert seen == list(range(60))
    assert "was ended by signal SIGKILL at or soon after the batch of samples" in caplog.text


def test_a_batch_that_ends_two_workers_is_named():
    legs = Legs(Work(dataset=Numbers(deadly=9)), 1)
    legs.begin(stream(30))
    assert [next(legs).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(WorkerError, match="SIGSEGV at the batch of samples 8, 9, as one before it"):
        next(legs)
    legs.close()


class Damaged(Numbers):
    def __getitem__(self, number: int):
        if number == 5:
            raise DecodeError("5.mp4: cut off before its end", problem="truncated")
        return number


@pytest.mark.parametrize("transport", ["shm", "memfd"])
def test_what_is_said_in_a_line_comes_without_the_worker_s_traceback(transport):
    legs = Legs(Work(dataset=Damaged(), transport=transport), 1)
    legs.begin(stream(30))
    assert [next(legs).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(DecodeError) as raised:
        next(legs)
    legs.close()
    assert str(raised.value) == "5.mp4: cut off before its end"
    assert raised.value.problem == "truncated"


def _owner_init(worker: int) -> None:
    get_worker_info().dataset.deadly = f"set up by worker {worker}"


class Telling(Numbers):
    def __getitem__(self, number: int):
        return str(self.deadly)


def test_an_owner_s_worker_init_finds_its_own_data_set():
    legs = Legs(Work(dataset=Telling(), collate=list, worker_init=_owner_init), 1)
    assert next(legs.begin(stream(1))) == ["set up by worker 0"] * 2
    legs.close()


class Lazy:
    """Opens something on first use, as data sets do that read one large file."""

    opened_by: int | None = None

    def __getitem__(self, number: int):
        if self.opened_by is None:
            self.opened_by = os.getpid()
        return int(self.opened_by == os.getpid())


def test_what_a_data_set_opened_in_the_trainer_is_not_carried_into_workers():
    legs = Legs(Work(dataset=Lazy(), varies=True), 0)
    seen = []
    for k, batch in enumerate(legs.begin(stream(20))):
        seen += batch.tolist()
        if k == 2:
            legs.resize(1)
    legs.close()
    assert set(seen) == {1}


class Cores:
    def __getitem__(self, number: int):
        return torch.get_num_threads()


def test_worker_threads_compute_with_one_core_each_and_the_trainer_as_before():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        legs = Legs(Work(dataset=Cores(), kind="threads"), 3)
        assert {n for batch in legs.begin(stream(9)) for n in batch.tolist()} == {1}
        assert len(legs.tids) == 3
        legs.close()
        assert torch.get_num_threads() == 2
        found = []
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert found == [2]
    finally:
        torch.set_num_threads(before)


class Slow:
    def __getitem__(self, number: int):
        time.sleep(0.02)
        return number


def test_a_change_is_steady_once_the_new_workers_have_given_what_they_began_with():
    legs = Legs(Work(dataset=Slow(), kind="threads", depth=2), 1)
    legs.begin(stream(40, size=1))
    steady = []
    for k, _ in enumerate(legs):
        if k == 5:
            legs.resize(3)
        steady.append(legs.steady)
    legs.close()
    assert steady[:2] == [False, True]
    assert not any(steady[5:12])
    assert all(steady[15:])


def test_no_descriptor_is_left_when_legs_come_and_go():
    def changed() -> int:
        legs = Legs(Work(dataset=Numbers(), varies=True), 1)
        for k, _ in enumerate(legs.begin(stream(20))):
            legs.resize(1 + k // 5 % 2)
        legs.close()
        return len(os.listdir("/proc/self/fd"))

    first = changed()
    assert max(changed() for _ in range(3)) <= first + 4, "a pipe may take a moment; a leak would be dozens"
