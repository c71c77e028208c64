"""However a trainer ends, nothing of its data set's workers stays: no process, nothing in /dev/shm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

TRAINER = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
from fulltilt.feed import feed
end, how = sys.argv[1:]
class Large(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, number): return torch.full((64, 1024), float(number))
if how == "loader":
    it = feed(DataLoader(Large(), batch_size=8, num_workers=2), num_workers="auto", device="cpu")
else:
    it = feed(Large(), batch_size=8, num_workers=2, worker_kind="processes", device="cpu")
    if how == "memfd":
        from dataclasses import replace
        it._crew.legs._work = replace(it._crew.legs._work, transport="memfd")
for k, batch in enumerate(it):
    if k == 5:
        print(*it._crew.legs.pids, flush=True)
        if end == "exit": sys.exit()
        if end == "raise": raise RuntimeError("something else")
        if "changing" in end: it._crew.resize(3)
    if k >= 5: time.sleep(0.05)
"""


def shared() -> set[str]:
    """What torch keeps in /dev/shm, on this machine; its names have the process in them."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("exit", "shm"),
        ("raise", "shm"),
        ("interrupt", "shm"),
        ("interrupt", "loader"),
        ("kill", "shm"),
        ("kill", "memfd"),
        ("kill while changing", "shm"),
        ("kill while changing", "loader"),
    ],
)
def test_no_process_and_no_memory_is_left(end, how):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, end, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(workers) == 2
    if end.startswith("kill"):
        time.sleep(0.1 if "changing" in end else 0.0)
        workers = children(trainer.pid)
        assert len(workers) >= 2
        trainer.kill()
    elif end == "interrupt":
        os.killpg(trainer.pid, signal.SIGINT)  # as a terminal does: to every process in the foreground
    _, said = trainer.communicate(timeout=30)
    expected = {"raise": "RuntimeError: something else", "interrupt": "KeyboardInterrupt"}.get(end, "")
    assert expected in said
    if not end.startswith("kill"):  # a worker whose trainer is gone may say that its connection is
        assert said.count("Traceback") == bool(expected), said
    until = time.monotonic() + 10
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in workers if alive(pid)]
    assert not [name for name in shared() if any(f"_{pid}_" in name for pid in [trainer.pid, *workers])]
