"""Data sets and tensors on a real GPU: values that stay right while workers, transports and memory change."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fulltilt.errors import InputError
from fulltilt.feed import feed
from fulltilt.feed.tuner import TRIALS

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Planes(Dataset):
    def __init__(self, length: int = 256) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int):
        return torch.full((64, 64), float(number)), number


def check(images, numbers) -> list[int]:
    """Whether each image is its number's, told on the GPU; a sum is enough to see a torn copy."""
    assert images.is_cuda
    assert numbers.is_cuda
    assert bool((images == numbers[:, None, None]).all())
    return numbers.tolist()


@pytest.mark.parametrize("transport", ["shm", "memfd"])
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_every_sample_once_and_whole_while_workers_change(kind, transport, monkeypatch):
    if transport == "memfd":
        monkeypatch.setattr("fulltilt.feed.datasets.prepare.read_shared_memory", lambda: None)
    with feed(Planes(), batch_size=8, shuffle=True, num_workers=2, worker_kind=kind) as it:
        for epoch in range(12):
            it.resize(1 + epoch % 4)
            seen = []
            for images, numbers in it:
                torch.randn(512, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
                seen += check(images, numbers)
            assert seen == it.order.permutation(epoch).tolist()


def test_a_loop_that_only_launches_is_not_taken_for_one_that_waits():
    """The host waits for batches while the GPU has work queued: that is not starvation."""
    with feed(Planes(64), batch_size=8, num_workers=1, worker_kind="processes") as it:

        def waited() -> float:
            figures = it.stats()
            return figures["wait_seconds_per_batch"] * figures["batches"]

        for _ in it:  # until the worker has started
            torch.cuda._sleep(50_000_000)
        before, started = waited(), time.monotonic()
        for _ in range(4):
            for _ in it:
                torch.cuda._sleep(50_000_000)
        assert waited() - before < 0.3 * (time.monotonic() - started)


def test_a_tuned_loader_settles_on_the_gpu(monkeypatch):
    monkeypatch.setattr("fulltilt.feed.tuner.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr("fulltilt.feed.tuner.MEASURE_SECONDS", 0.2)
    loader = DataLoader(Planes(), batch_size=8, num_workers=2, persistent_workers=True)
    with feed(loader, num_workers="auto") as it:
        until = time.monotonic() + 60
        while it.decision is None and time.monotonic() < until:
            assert [n for images, numbers in it for n in check(images, numbers)] == list(range(256))
        assert it.decision is not None
        assert len(it.decision.evidence["trials"]) <= TRIALS


def test_small_batches_of_resident_tensors_are_gathered_together():
    x, y = torch.randn(5000, 24, 16), torch.arange(5000)
    it = feed((x, y), batch_size=32, shuffle=True, seed=3)
    assert it.resident
    assert it._gatherer._together == 64
    for epoch in range(2):
        order = it.order.permutation(epoch)
        position = 0
        for values, numbers in it:
            expected = order[position : position + len(numbers)]
            position += len(numbers)
            assert np.array_equal(numbers.cpu().numpy(), expected)
            assert torch.equal(values.cpu(), x[expected])
        assert position == 5000


class OnTheGpu(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int):
        return torch.zeros(3, device="cuda")


def test_a_data_set_that_uses_cuda_is_named_before_it_starts():
    torch.zeros(1, device="cuda")
    with pytest.raises(InputError, match=r"uses CUDA.*leave tensors on the CPU"):
        feed(OnTheGpu(), batch_size=2, num_workers=1)
