"""Two processes: the losses and weights of one with the whole batch, also where one of them runs out of memory."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch import nn

from fulltilt.train import HybridPrecisionTrainer

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from fulltilt.train import HybridPrecisionTrainer

rank, meeting, room, fails_at, out = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

class Small(nn.Sequential):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if rank == 1 and len(x) > room and self.calls > fails_at:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        return super().forward(x)

tries = len(sys.argv) > 6
torch.compile = lambda function, **_: function
torch.manual_seed(0)
model = Small(nn.Linear(6, 16, dtype=torch.float64), nn.Tanh(), nn.Linear(16, 3, dtype=torch.float64))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = HybridPrecisionTrainer(model, sgd, device="cpu", accumulate=2, compile=tries)
trainer.forward_model = DistributedDataParallel(model)
draw = torch.Generator().manual_seed(3)
losses = []
for _ in range(12):
    x = torch.randn(16, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (16,), generator=draw)
    losses.append(trainer.train_step(x[rank * 8 : rank * 8 + 8], y[rank * 8 : rank * 8 + 8]).loss)
torch.save({"losses": torch.stack(losses), "model": model.state_dict(), "micro": trainer._micro.micro.size,
            "compiled": trainer.plan["compile"].value, "seconds": dict(trainer.plan["compile"].evidence)}, out)
dist.destroy_process_group()
"""


def on_two(folder, room, fails_at=0, *more):
    script, meeting = folder / "script.py", folder / "meeting"
    script.write_text(SCRIPT)
    outs = [folder / f"{rank}.pt" for rank in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(meeting), str(room), str(fails_at), out, *more],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank, out in enumerate(outs)
    ]  # fmt: skip
    errors = []
    for one in running:
        try:
            _, error = one.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            one.kill()
            _, error = one.communicate()
        errors.append(error)
    return [one.returncode for one in running], errors, outs


def on_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16, dtype=torch.float64), nn.Tanh(), nn.Linear(16, 3, dtype=torch.float64))
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu", accumulate=2)
    draw = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(12):
        x = torch.randn(16, 6, generator=draw, dtype=torch.float64)
        losses.append(trainer.train_step(x, torch.randint(0, 3, (16,), generator=draw)).loss)
    return torch.stack(losses), model.state_dict()


def test_two_ranks_train_as_one_and_shrink_together(tmp_path):
    codes, errors, outs = on_two(tmp_path, 3)
    assert codes == [0, 0], errors
    found = [torch.load(out, weights_only=True) for out in outs]
    assert [one["micro"] for one in found] == [2, 2]
    assert "out of memory (on another rank): micro-batches of 4 instead of 8" in errors[0]
    assert_as_one(found)


def test_two_ranks_try_settings_together_and_decide_the_same(tmp_path):
    codes, errors, outs = on_two(tmp_path, 8, 0, "tries")
    assert codes == [0, 0], errors
    found = [torch.load(out, weights_only=True) for out in outs]
    assert [one["compiled"] for one in found] == [True, True]
    assert found[0]["seconds"] == found[1]["seconds"], "both go by the slower one's figures"
    assert_as_one(found)


def assert_as_one(found):
    losses, weights = on_one()
    torch.testing.assert_close(sum(one["losses"] for one in found) / 2, losses, rtol=1e-12, atol=1e-12)
    for one in found:
        for name, value in weights.items():
            torch.testing.assert_close(one["model"][name], value, rtol=1e-11, atol=1e-11)


def test_memory_that_ends_in_the_middle_of_reducing_is_not_waited_for_in_vain(tmp_path):
    """The first steps proved the size; later a rank can only say what happened. The other's connection breaks."""
    codes, errors, _ = on_two(tmp_path, 3, 8)
    assert all(codes)
    assert "out of memory on rank 1: tried to allocate 3 GiB" in errors[1]
    assert "start again from the last checkpoint" in errors[1]
