"""Two processes on one GPU, over gloo: the loop's way of seeing losses late, but all ranks at the same step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.together_script import run

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).parents[1] / "train" / "together_script.py"


def test_two_processes_train_as_one_and_agree_on_bad_losses(tmp_path):
    jobs = [
        {"name": "ddp", "device": "cuda", "config": {"accumulate": 2, "clip_norm": 0.5, "checkpoint_every_steps": 5}},
        {"name": "rollback", "device": "cuda", "bad_sample": 50,
         "config": {"nan_policy": "rollback", "checkpoint_every_steps": 2}},
    ]  # fmt: skip
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), *sys.path])}
    done = subprocess.run(
        [*launch, str(tmp_path), json.dumps(jobs)], env=env, timeout=200, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (torch.load(tmp_path / f"ddp-{rank}.pt", weights_only=True) for rank in range(2))
    alone = run({**jobs[0], "name": "alone"}, tmp_path)
    assert torch.equal(first["losses"], second["losses"])
    torch.testing.assert_close(first["losses"], alone["losses"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-4, atol=1e-4)
    both = [torch.load(tmp_path / f"rollback-{rank}.pt", weights_only=True) for rank in range(2)]
    torch.testing.assert_close(both[0]["weights"], both[1]["weights"], rtol=0, atol=0)
    assert all(bool(value.isfinite().all()) for value in both[0]["weights"].values())
