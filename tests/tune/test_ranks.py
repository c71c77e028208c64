"""Two processes: one has less memory, or is slower, or fails, and both return the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json, sys, torch, torch.distributed as dist
from torch import nn
from fulltilt.errors import FulltiltError
from fulltilt.tune import bench, get_optimal_batch_size

class Clock:
    # Goes on where the model says so, and at no other time: on busy cores a step takes no longer than elsewhere.
    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

time = bench.time = Clock()

rank, meeting, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
torch.set_num_threads(1)
asked = []

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if rank == 1 and mode == "memory" and len(x) > 24:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        if rank == 1 and mode == "failure" and len(x) > 8:
            raise TypeError("what is this?")
        # Rank 0 would take the largest size, rank 1 is as fast with any.
        time.sleep(0.02 if mode != "pace" or rank == 0 else 0.002 * len(x))
        return self.layer(x)

def make(size):
    asked.append(size)
    return torch.randn(size, 4), torch.randint(0, 2, (size,))

model = nn.parallel.DistributedDataParallel(Model()) if mode == "pace" else Model()
limit = 10**9 if mode == "pace" and rank == 1 else None
try:
    size = get_optimal_batch_size(model, make, 8, 64, 8, device="cpu", memory_bytes=limit)
    found = {"size": size, "limit": size.decision.evidence["limit_bytes"], "problems": [t.problem for t in size.trials]}
except (FulltiltError, TypeError) as error:
    found = {"error": str(error)}
print(json.dumps({**found, "asked": asked}))
dist.destroy_process_group()
"""


def on_two(folder, mode):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder / "meeting"), mode],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = []
    for one in running:
        try:
            outputs.append(one.communicate(timeout=90))
        except subprocess.TimeoutExpired:
            one.kill()
            outputs.append(one.communicate())
    assert [one.returncode for one in running] == [0, 0], outputs
    return [json.loads(out) for out, _ in outputs], [error for _, error in outputs]


def test_one_rank_runs_out_of_memory(tmp_path):
    found, errors = on_two(tmp_path, "memory")
    assert found[0]["asked"] == found[1]["asked"]
    assert found[0]["size"] == found[1]["size"] == 24
    assert "out of memory on another rank" in found[0]["problems"]
    assert "out of memory" in found[1]["problems"]
    assert "← chosen" in errors[0]
    assert errors[1] == ""  # the first rank speaks


def test_one_rank_is_slower_and_allowed_less(tmp_path):
    """Both take the slower one's pace, which gains nothing from 16 samples on, and the smaller one's memory."""
    found, _ = on_two(tmp_path, "pace")
    assert found[0]["asked"] == found[1]["asked"]
    assert found[0]["size"] == found[1]["size"] == 16
    assert found[0]["limit"] == found[1]["limit"] == 9 * 10**8


def test_one_rank_fails(tmp_path):
    found, _ = on_two(tmp_path, "failure")
    assert "what is this?" in found[1]["error"]
    assert found[0]["error"] == "batch size 16 failed on another rank; its message says why"
