"""Batches in anonymous memory: the same values, nothing in /dev/shm, also where that is far too small."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from fulltilt.feed.datasets.leg import Work
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.datasets.shelf import Request

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Pair = namedtuple("Pair", "left right")


class Mixed:
    def __getitem__(self, number: int):
        return {
            "image": torch.full((3, 50, 70), number, dtype=torch.uint8),
            "pair": Pair(torch.tensor(float(number)), torch.zeros(0)),
            "name": f"number {number}",
            "flag": torch.tensor(number % 2 == 0),
        }


def batches(transport: str):
    legs = Legs(Work(dataset=Mixed(), transport=transport), 2)
    yield from legs.begin(Request([k, k + 1, k + 2]) for k in range(12))
    legs.close()


def test_values_and_structure_are_those_of_torch_s_own_way():
    count = 0
    for ours, theirs in zip(batches("memfd"), batches("shm"), strict=True):
        assert ours["image"].dtype == torch.uint8
        assert torch.equal(ours["image"], theirs["image"])
        assert isinstance(ours["pair"], Pair)
        assert torch.equal(ours["pair"].left, theirs["pair"].left)
        assert ours["pair"].right.shape == (3, 0)
        assert ours["name"] == theirs["name"]
        assert torch.equal(ours["flag"], theirs["flag"])
        ours["image"].add_(1)  # it is ours to write to
        count += 1
    assert count == 12


def test_memory_and_descriptors_are_freed_with_the_batch():
    def descriptors() -> int:
        gc.collect()  # of tests before this one
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    kept = list(batches("memfd"))
    assert Path("/proc/self/maps").read_text().count("fulltilt-batch") == 12
    assert descriptors() == before + 12, "one a batch, not one a tensor"
    del kept
    assert "fulltilt-batch" not in Path("/proc/self/maps").read_text()
    assert descriptors() == before


def test_a_collate_function_still_knows_afterwards_that_it_is_in_a_worker():
    def collate(samples):
        return default_collate(samples)

    legs = Legs(Work(dataset=Mixed(), transport="memfd", collate=collate), 1)
    assert [batch["image"].is_shared() for batch in legs.begin(Request([k]) for k in range(3))] == [False] * 3
    legs.close()


SMALL = """
import logging, torch
logging.basicConfig(level=logging.INFO)
from fulltilt.feed import feed
class Large(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, number): return torch.full((512, 512), float(number))
with feed(Large(), batch_size=8, device="cpu", num_workers=2, worker_kind="processes") as it:
    assert [batch[:, 0, 0].tolist() for batch in it] == [[float(8 * k + n) for n in range(8)] for k in range(8)]
    assert it.hosting.value.transport == "memfd", it.hosting
"""


def test_a_dev_shm_of_one_mebibyte_will_do():
    mounted = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "
    can = subprocess.run(["unshare", "-m", "sh", "-c", mounted + "true"], capture_output=True, check=False)
    if can.returncode:
        pytest.skip(f"a /dev/shm of one's own can't be mounted here: {can.stderr.decode().strip()}")
    command = ["unshare", "-m", "sh", "-c", mounted + '"$0" -c "$1"', sys.executable, SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "/dev/shm has 1 MiB free: they are handed over in anonymous memory" in done.stderr
