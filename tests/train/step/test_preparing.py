"""Batches made ready by threads while the step before them runs."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

from fulltilt import HybridPrecisionTrainer
from fulltilt.errors import TaskError


def trainer(lr=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    return HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=lr), device="cpu", precision="fp32")


def raw(count=20):
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield (
            torch.randint(0, 256, (4, 3, 2, 2), generator=draw, dtype=torch.uint8),
            torch.randint(3, (4,), generator=draw),
        )


def prepare(batch):
    images, labels = batch
    return images.float() / 255, labels


def test_training_is_the_same_as_with_batches_prepared_in_the_loop():
    plain, ours = trainer(), trainer()
    expected = [float(plain.train_step(*prepare(batch)).loss) for batch in raw()]
    found = [float(ours.train_step(*batch).loss) for batch in ours.prepared(raw(), prepare, num_workers=3)]
    assert found == expected
    assert ours.get_performance_stats()["background_seconds"] > 0


def test_the_next_batch_is_made_while_the_step_runs():
    made = [threading.Event() for _ in range(10)]

    def marking(numbered):
        number, batch = numbered
        made[number].set()
        return prepare(batch)

    steps = 0
    for _ in trainer().prepared(enumerate(raw(10)), marking, num_workers=1):
        steps += 1
        # The step: it lasts until the batch after it is made, which nobody has asked for yet.
        assert made[min(steps, 9)].wait(10)
    assert steps == 10


def test_leaving_the_loop_ends_the_threads_and_takes_no_more_batches():
    taken = []

    def source():
        for batch in raw(1000):
            taken.append(1)
            yield batch

    before = set(threading.enumerate())
    ours = trainer()
    for number, _ in enumerate(ours.prepared(source(), prepare, num_workers=2)):
        if number == 3:
            break
    assert len(taken) < 20
    end = time.monotonic() + 10
    while any(t.is_alive() for t in set(threading.enumerate()) - before if t.name.startswith("fulltilt-")):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_fails_in_a_thread_is_raised_in_the_loop():
    def broken(batch):
        raise OSError("the disk is gone")

    with pytest.raises(TaskError, match="OSError: the disk is gone"):
        next(trainer().prepared(raw(), broken))
