"""Ten thousand batches: memory stays within the formula that docs/feed.md states, and no descriptor is left open.

Each feed runs in a process of its own: pages that a forked worker shares with a large parent stop being shared one by
one, which would look like a leak.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import chain, islice, repeat
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from torch.utils.data import Dataset

from fulltilt.augment import GPUAugmentation
from fulltilt.feed import Feed, ImageFiles, feed
from fulltilt.feed.datasets.hosting import MOVING, PROCESS_BYTES

BATCHES = 10_000
MIB = 1 << 20
SLACK = 16 * MIB
"""What allocators keep; a batch of 16 KiB that was forgotten 10,000 times would take 160 MiB."""
ROW = 1024


class Rows(Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int):
        return torch.full((ROW,), number, dtype=torch.float32)


def tree_bytes() -> int:
    """Memory of this process and all under it; what they share counts once."""
    own = psutil.Process()
    return sum(process.memory_full_info().pss for process in (own, *own.children(recursive=True)))


def descriptors() -> list[str]:
    """What is open, by name."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def left_open(most: int) -> list[str]:
    """All that is open, if it stays more than so many.

    A queue of multiprocessing closes its pipe in a thread of its own, which torch tells to end and does not wait for.
    """
    deadline = time.monotonic() + 10
    while len(found := descriptors()) > most and time.monotonic() < deadline:
        time.sleep(0.05)
    return found if len(found) > most else []


def go_through(make: Callable[[], Feed], *, formula_bytes: int) -> None:
    """10,000 batches; memory is compared with before the first and with after the first thousand."""
    gc.collect()
    before, opened = tree_bytes(), len(descriptors())
    with make() as it:
        batches = chain.from_iterable(repeat(it))
        for _ in islice(batches, BATCHES // 10):
            pass
        gc.collect()  # writes to pages that are shared with forked workers: here, and not at some later moment
        began, held = tree_bytes(), len(descriptors())
        assert began - before <= formula_bytes + SLACK, f"{(began - before) / MIB:.0f} MiB after the first thousand"
        most = began
        for k, _ in enumerate(islice(batches, BATCHES - BATCHES // 10)):
            if k % 1500 == 0:
                most = max(most, tree_bytes())
        most = max(most, tree_bytes())
        assert most - began <= SLACK, f"it has grown by {(most - began) / MIB:.0f} MiB"
        assert not (left := left_open(held + 2 * MOVING)), f"each batch under way may hold one, found {left}"
        del batches
    gc.collect()
    assert not (left := left_open(opened + 1)), f"multiprocessing's resource tracker may stay, found {left}"


def of_a_data_set(kind: str, transport: str) -> None:
    def make() -> Feed:
        it = feed(Rows(), batch_size=4, device="cpu", num_workers=2, worker_kind=kind)
        assert it.hosting.value.transport == transport
        return it

    own = 2 * PROCESS_BYTES if kind == "processes" else 0
    none = patch("fulltilt.feed.datasets.prepare.read_shared_memory", lambda: None)
    with none if transport == "memfd" else nullcontext():
        go_through(make, formula_bytes=own + (2 * 2 + 2 + MOVING) * 4 * 4 * ROW)


def of_tensors() -> None:
    data = torch.zeros(512, ROW)
    go_through(lambda: feed(data, batch_size=4, device="cpu", shuffle=True), formula_bytes=0)


def of_image_files() -> None:
    photo = simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8))
    slots = 4 * int(1.25 * 2 * (48 * 64 * 3 + 64))
    # The pixels' way ends here: on a CPU the augmentation is a reference that takes its time.
    short = patch.object(GPUAugmentation, "forward", lambda *_, **__: torch.zeros(2, 3, 16, 16))
    with tempfile.TemporaryDirectory() as folder, short:
        paths = [Path(folder, f"{number}.jpg") for number in range(200)]
        for path in paths:
            path.write_bytes(photo)
        go_through(
            lambda: feed(ImageFiles(paths), batch_size=2, size=16, device="cpu", num_workers=2),
            formula_bytes=2 * 40 * MIB + 2 * slots,
        )


@pytest.mark.parametrize(
    "what",
    ["of_a_data_set threads shm", "of_a_data_set processes shm", "of_a_data_set processes memfd", "of_tensors",
     "of_image_files"],
)  # fmt: skip
def test_memory_of_ten_thousand_batches(what):
    command = [sys.executable, __file__, *what.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
