"""AsyncDataProcessor with real threads."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from tests.waiting import until

from fulltilt import AsyncDataProcessor
from fulltilt.assist.registry import as_tensors
from fulltilt.errors import InputError, TaskError


class Gates:
    """Preprocessing that lets each batch through when it is told to."""

    def __init__(self, batches):
        self.gates = {batch: threading.Event() for batch in batches}

    def __call__(self, batch):
        assert self.gates[batch].wait(20)
        return 10 * batch

    def open(self, *batches):
        for batch in batches:
            self.gates[batch].set()


def test_results_in_order_never_waited_for():
    work = Gates(range(3))
    with AsyncDataProcessor(3, work) as processor:
        futures = [processor.submit_preprocessing(n) for n in range(3)]
        began = time.perf_counter()
        assert processor.get_completed_results() == []
        assert time.perf_counter() - began < 1
        work.open(1)
        assert futures[1].exception(5) is None
        assert processor.get_completed_results() == []  # the first is not done yet
        work.open(0)
        assert futures[0].exception(5) is None
        assert processor.get_completed_results() == [0, 10]
        work.open(2)
        assert futures[2].result(5) == 20
        assert processor.get_completed_results() == []  # it was taken from its future


def test_results_as_completed():
    work = Gates(range(3))
    with AsyncDataProcessor(3, work, ordered=False) as processor:
        futures = [processor.submit_preprocessing(n) for n in range(3)]
        work.open(2)
        assert futures[2].exception(5) is None
        assert processor.get_completed_results() == [20]
        work.open(0, 1)
        until(lambda: all(future.done() for future in futures))
        assert processor.get_completed_results() == [0, 10]


def test_a_batch_that_fails_is_told_when_its_turn_has_come():
    with AsyncDataProcessor(1, lambda n: 6 // n) as processor:
        futures = [processor.submit_preprocessing(n) for n in (1, 0, 3)]
        until(lambda: all(future.done() for future in futures))
        assert processor.get_completed_results() == [6]
        with pytest.raises(TaskError, match="'data_preprocessing' failed: ZeroDivisionError"):
            processor.get_completed_results()
        assert processor.get_completed_results() == [2]
        assert processor.get_completed_results() == []


def test_too_many_batches_have_to_wait():
    work = Gates(range(4))
    with AsyncDataProcessor(1, work, ahead=2) as processor:
        for n in range(3):  # one in the works, two waiting
            processor.submit_preprocessing(n)
            if n == 0:
                until(lambda: processor.stats().busy)
        entered = threading.Event()
        thread = threading.Thread(target=lambda: (processor.submit_preprocessing(3), entered.set()))
        thread.start()
        assert not entered.wait(0.1)
        work.open(0)
        assert entered.wait(5)
        work.open(1, 2, 3)
        thread.join()


def test_results_that_nobody_collects_are_let_go_of(caplog):
    with AsyncDataProcessor(2, keep=5) as processor:
        futures = [processor.submit_preprocessing(n) for n in range(50)]
        until(lambda: all(future.done() for future in futures))
        assert 40 <= processor.let_go <= 45
        left = processor.get_completed_results()
        assert left == list(range(50))[-len(left) :]
    assert caplog.text.count("more than 5 results were not collected") == 1


def test_a_result_taken_from_its_future_is_let_go_of_with_the_next_batch():
    with AsyncDataProcessor(1, preprocess=torch.empty) as processor:
        first = weakref.ref(processor.submit_preprocessing(1000).result(10))
        assert first() is not None
        processor.submit_preprocessing(1)
        gc.collect()
        assert first() is None


def test_results_taken_from_futures_are_not_kept():
    with AsyncDataProcessor(2, keep=5) as processor:
        assert [processor.submit_preprocessing(n).result(5) for n in range(50)] == list(range(50))
        assert processor.let_go == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_map_takes_only_as_many_as_it_needs(ordered):
    taken = []

    def source():
        for n in itertools.count():
            taken.append(n)
            yield n

    with AsyncDataProcessor(2, lambda n: n * n, ordered=ordered, ahead=3) as processor:
        results = processor.map(source())
        assert taken == []
        first = [next(results) for _ in range(10)]
        assert len(taken) <= 10 + 5
        results.close()
        rest = list(processor.map(range(7)))
    if ordered:
        assert first == [n * n for n in range(10)]
        assert rest == [n * n for n in range(7)]
    else:
        assert len(set(first)) == 10
        assert sorted(rest) == [n * n for n in range(7)]


def test_map_has_as_many_at_work_at_once_as_there_are_workers():
    meeting = threading.Barrier(4)
    with AsyncDataProcessor(4, lambda n: (meeting.wait(60), n)[1]) as processor:
        assert list(processor.map(range(40))) == list(range(40)), "no batch is done before four are there"


def test_map_tells_of_a_batch_that_fails():
    with AsyncDataProcessor(2, lambda n: 6 // n) as processor:
        results = processor.map([1, 2, 0, 3])
        assert [next(results), next(results)] == [6, 3]
        with pytest.raises(TaskError, match="ZeroDivisionError"):
            next(results)


def test_the_source_of_a_map_may_fail():
    def source():
        yield 1
        raise OSError("the disk is gone")

    with AsyncDataProcessor(2) as processor, pytest.raises(OSError, match="the disk is gone"):
        list(processor.map(source()))


def test_without_a_function_arrays_become_tensors():
    image = np.arange(12, dtype=np.uint8).reshape(3, 4).T  # not contiguous
    with AsyncDataProcessor() as processor:
        images, more = processor.submit_preprocessing((image, {"label": 3, "mask": torch.zeros(2, 3).T})).result(5)
    assert torch.equal(images, torch.tensor(image.tolist(), dtype=torch.uint8))
    assert images.is_contiguous()
    assert more["label"] == 3
    assert more["mask"].is_contiguous()
    names = np.array(["cat", "dog"])
    assert as_tensors([names])[0] is names  # torch has none of these


def test_bad_settings():
    with pytest.raises(InputError, match="ahead is 0; it is a whole number from 1 on"):
        AsyncDataProcessor(1, ahead=0)
    with pytest.raises(InputError, match="keep is 'all'"):
        AsyncDataProcessor(1, keep="all")
