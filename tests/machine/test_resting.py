"""The end of a program waits for threads that hold what is Python's."""

from __future__ import annotations

import _thread
import hashlib
import os
import subprocess
import sys
import threading

from tests.waiting import until

from fulltilt.machine.resting import _is_awake, rest

STARVED = """
import os, sys, threading, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from fulltilt.machine.resting import rest_at_exit
from fulltilt.train import HybridPrecisionTrainer

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
model = nn.Linear(6, 3)
trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu", compile=False)
assert rest_at_exit.cache_info().currsize, "nobody will wait"
trainer.forward_model = forward = DistributedDataParallel(model)
x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
for _ in range(5):
    trainer.train_step(x, y)
time.sleep(0.3)
core, own = max(os.sched_getaffinity(0)), {thread.native_id for thread in threading.enumerate()}
os.sched_setaffinity(0, {core})
for task in map(int, os.listdir("/proc/self/task")):
    if task not in own:  # gloo's threads run when nobody else wants to
        os.sched_setaffinity(task, {core})
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
loss = forward(x).sum()
sys.setswitchinterval(1000)  # and are not handed the interpreter's lock
loss.backward()
"""


def busy(done: threading.Event) -> None:
    data = bytes(64 << 20)
    for _ in range(8):
        hashlib.sha256(data)  # without the interpreter's lock
    done.set()


def test_a_busy_native_thread_is_waited_for(monkeypatch):
    monkeypatch.setattr("fulltilt.machine.resting._MOST_SECONDS", 60.0)
    done = threading.Event()
    _thread.start_new_thread(busy, (done,))  # `threading` knows nothing of it, as of a library's own
    rest()
    assert done.is_set()


def test_one_that_sleeps_is_not():
    asleep, ours = _thread.allocate_lock(), []

    def sleep() -> None:
        ours.append(threading.get_native_id())
        asleep.acquire()

    asleep.acquire()
    _thread.start_new_thread(sleep, ())
    until(lambda: ours and not _is_awake(str(ours[0])))
    asleep.release()


def test_one_that_is_busy_for_ever_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr("fulltilt.machine.resting._any_busy", lambda: True)
    monkeypatch.setattr("fulltilt.machine.resting._MOST_SECONDS", 0.05)
    rest()


def test_a_rank_that_ends_with_its_last_backward_is_not_aborted(tmp_path):
    """Without the wait one of them is, about every second time."""
    script = tmp_path / "script.py"
    script.write_text(STARVED)
    command = [sys.executable, str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], env=env, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [one.communicate(timeout=120)[1] for one in running]
    assert [one.returncode for one in running] == [0, 0], errors
