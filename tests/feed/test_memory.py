"""Ten thousand batches: memory stays within the formula that docs/feed.md states, and no descriptor is left open."""

from __future__ import annotations

import gc
import os
from itertools import chain, islice, repeat

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from torch.utils.data import Dataset

from fulltilt.augment import GPUAugmentation
from fulltilt.feed import ImageFiles, feed
from fulltilt.feed.hosting import MOVING, PROCESS_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

BATCHES = 10_000
MIB = 1 << 20
SLACK = 12 * MIB
"""What allocators keep; a batch of 16 KiB that was forgotten 10,000 times would take 160 MiB."""
SAMPLE = (4, 1024)


class Rows(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int):
        return torch.full(SAMPLE[1:], number, dtype=torch.float32)


def tree_bytes() -> int:
    """Memory of this process and all under it; what they share counts once."""
    own = psutil.Process()
    return sum(process.memory_full_info().pss for process in (own, *own.children(recursive=True)))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def go_through(it, *, formula_bytes: int) -> None:
    """10,000 batches; memory is compared with before the first and with after the first thousand."""
    batches = chain.from_iterable(repeat(it))
    for _ in islice(batches, BATCHES // 10):
        pass
    gc.collect()
    began, opened = tree_bytes(), descriptors()
    assert began - it.before <= formula_bytes + SLACK
    most = 0
    for k, _ in enumerate(islice(batches, BATCHES - BATCHES // 10)):
        if k % 1500 == 0:
            most = max(most, tree_bytes())
    assert max(most, tree_bytes()) - began <= SLACK, "it grows"
    assert descriptors() <= opened + 2 * MOVING, "each batch under way may hold one"


def prepared(make):
    gc.collect()
    before = tree_bytes()
    it = make()
    it.before = before
    return it


@pytest.mark.parametrize(("kind", "transport"), [("threads", "shm"), ("processes", "shm"), ("processes", "memfd")])
def test_a_data_set(kind, transport, monkeypatch):
    if transport == "memfd":
        monkeypatch.setattr("fulltilt.feed.prepare.read_shared_memory", lambda: None)
    opened = descriptors()
    with prepared(lambda: feed(Rows(), batch_size=4, device="cpu", num_workers=2, worker_kind=kind)) as it:
        assert it.hosting.value.transport == transport
        own = 2 * PROCESS_BYTES if kind == "processes" else 0
        batch_bytes = 4 * 4 * SAMPLE[1]
        go_through(it, formula_bytes=own + (2 * 2 + 2 + MOVING) * batch_bytes)
    gc.collect()
    assert descriptors() <= opened + 2, "the resource tracker may stay"


def test_tensors():
    data = torch.zeros(512, SAMPLE[1])
    with prepared(lambda: feed(data, batch_size=4, device="cpu", shuffle=True)) as it:
        go_through(it, formula_bytes=0)


def test_image_files(tmp_path, monkeypatch):
    # The pixels' way ends here: on a CPU the augmentation is a reference that takes its time.
    monkeypatch.setattr(GPUAugmentation, "forward", lambda *_, **__: torch.zeros(2, 3, 16, 16))
    photo = simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8))
    paths = []
    for number in range(200):
        paths.append(tmp_path / f"{number}.jpg")
        paths[-1].write_bytes(photo)
    opened = descriptors()
    with prepared(lambda: feed(ImageFiles(paths), batch_size=2, size=16, device="cpu", num_workers=2)) as it:
        slots = 4 * int(1.25 * 2 * (48 * 64 * 3 + 64))
        go_through(it, formula_bytes=2 * 40 * MIB + 2 * slots)
    gc.collect()
    assert descriptors() <= opened
