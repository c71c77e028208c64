"""Real processes under torchrun: two train as one does, survive one that is killed, and others go on from their state.

Sums over two processes are rounded in another order than those of one: losses and weights are compared in fp32 with a
tolerance of 2e-5 after 24 steps; one rounding is 6e-8.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.train.together_script import run

from fulltilt.train.checkpoint import load_checkpoint, sharded

HERE = Path(__file__).parents[1]
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def torchrun(folder: Path, ranks: int, *command: str, restarts: int = 0) -> subprocess.Popen[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    hidden = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **hidden}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *launch, *command], cwd=folder, env=env, **pipes)


def finished(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            out, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, out
    return out


def on_ranks(folder: Path, ranks: int, jobs: list[dict[str, Any]]) -> tuple[list[list[dict[str, Any]]], str]:
    """Every job's results, by rank, and what was said."""
    said = finished(torchrun(folder, ranks, str(HERE / "together_script.py"), str(folder), json.dumps(jobs)))
    found = [
        [torch.load(folder / f"{job['name']}-{rank}.pt", weights_only=True) for rank in range(ranks)] for job in jobs
    ]
    return found, said


def assert_close(found: dict[str, Any], expected: dict[str, Any], *, steps: int | None = None) -> None:
    torch.testing.assert_close(found["losses"], expected["losses"][-(steps or 0) :], **CLOSE)
    torch.testing.assert_close(found["weights"], expected["weights"], **CLOSE)
    count = len(found["figures"])
    for one, other in zip(found["figures"], expected["figures"][-count:], strict=True):
        if steps and one is found["figures"][0]:
            one["train_accuracy"] = other["train_accuracy"]  # counted from where other ranks went on
        assert one == pytest.approx(other, rel=2e-5)


def test_two_processes_train_as_one_with_the_whole_batch(tmp_path):
    jobs = [
        {"name": "ddp", "config": {"clip_norm": 0.5, "ema_decay": 0.9}},
        {"name": "ddp-accumulated", "config": {"accumulate": 3, "clip_norm": 0.5}},
        {"name": "fsdp", "config": {"parallel": "fsdp", "clip_norm": 0.5, "ema_decay": 0.9}},
        {"name": "fsdp-accumulated", "config": {"parallel": "fsdp", "accumulate": 3, "clip_norm": 0.5}},
        {"name": "wrapped", "wrapped": True, "unused": True, "config": {}},
    ]
    found, said = on_ranks(tmp_path, 2, jobs)
    assert said.count("parallel: ddp over 2 processes (on the CPU every process has the whole model)") == 2
    assert said.count("parallel: fsdp over 2 processes (asked for)") == 2
    (tmp_path / "alone").mkdir()
    for job, (first, second) in zip(jobs, found, strict=True):
        expected = run({**job, "wrapped": False}, tmp_path / "alone")
        assert torch.equal(first["losses"], second["losses"])
        assert first["figures"] == second["figures"]
        assert_close(first, expected)
        assert_close(second, expected)


def test_a_script_with_plain_data_loaders_and_bad_losses_of_one_rank(tmp_path):
    """No line about processes. Each sample comes once; a bad loss is everybody's, and all do the same about it."""
    jobs = [
        {"name": "plain", "loader": True, "config": {}},
        {"name": "skip", "loader": True, "bad_sample": 50, "config": {"nan_policy": "skip"}},
        {"name": "rollback", "loader": True, "bad_sample": 50,
         "config": {"nan_policy": "rollback", "checkpoint_every_steps": 2, "max_steps": 8}},
        {"name": "uneven", "loader": True, "uneven": True, "config": {}},
    ]  # fmt: skip
    (plain, skip, rollback, uneven), said = on_ranks(tmp_path, 2, jobs)
    assert_close(plain[0], run({"name": "alone", "config": {}}, tmp_path))
    for first, second in (skip, rollback):
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
        assert all(bool(value.isfinite().all()) for value in first["weights"].values())
    assert int(skip[0]["losses"].isnan().sum()) == 3, "once in each epoch"
    assert said.count("; rolling back") == 1
    assert [each["step"] for each in uneven] == [9, 9], "an epoch ends for all when it ends for one"


def test_checkpoints_of_two_load_on_one_and_on_three(tmp_path):
    jobs = [
        {"name": name, "loader": name == "ddp", "config": {"parallel": name, "accumulate": 2, "max_steps": 12}}
        for name in ("ddp", "fsdp")
    ]
    on_ranks(tmp_path, 2, jobs)
    assert load_checkpoint(max((tmp_path / "fsdp" / "checkpoints").iterdir()))["step"] == 12, "in the second epoch"
    for job in jobs:
        job["config"] |= {"max_steps": 20, "resume": True}
        shutil.copytree(tmp_path / job["name"], tmp_path / "one" / job["name"])
    shutil.copytree(tmp_path / "ddp", tmp_path / "crossed")  # saved whole, loaded in parts
    crossed = {"name": "crossed", "config": {**jobs[1]["config"]}}
    expected = run({"name": "whole", "config": {"accumulate": 2, "max_steps": 20}}, tmp_path)
    three, _ = on_ranks(tmp_path, 3, [*jobs, crossed])
    for each in chain.from_iterable(three):
        assert_close(each, expected, steps=8)
    for job in jobs:  # one process that torchrun did not start would have a DataLoader's own order: a feed has ours
        assert_close(run({**job, "loader": False}, tmp_path / "one"), expected, steps=8)


MODULE = """
import os, signal
import torch
from torch import nn

def data():
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(3))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()

class Net(nn.Sequential):
    calls = 0

    def __init__(self, kills=False):
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 2))
        self.kills = kills and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    def forward(self, x):
        self.calls += self.training
        if self.kills and self.calls == 15:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""
BOTH = """
import os
from pathlib import Path
from fulltilt.cli.train import train

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    train(Path("run.yaml"), ["training.output=whole"])
train(Path("run.yaml"), ["training.output=killed", "model.args={kills: true}"])
"""
CONFIG = {
    "data": {"source": "own:data", "batch_size": 6},
    "model": {"name": "own:Net"},
    "training": {"epochs": 3, "lr": 0.02, "seed": 1, "checkpoint_every_steps": 4, "compile": False, "device": "cpu"},
}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def test_a_killed_rank_is_started_again_and_the_run_ends_as_if_nothing_had_been(project):
    (project / "script.py").write_text(BOTH)
    said = finished(torchrun(project, 2, "script.py", restarts=1))
    assert "exitcode: -9" in said, said
    assert re.search("resuming from step (8|12) ", said), "of which the last may not have been written yet"
    ends = [load_checkpoint(max((project / name / "checkpoints").iterdir())) for name in ("whole", "killed")]
    assert [end["step"] for end in ends] == [24, 24]
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name
    for rank in range(2):
        draws = [random_state(project / name, rank) for name in ("whole", "killed")]
        assert torch.equal(*draws), "each rank has its own random numbers back"
    assert not torch.equal(random_state(project / "whole", 0), random_state(project / "whole", 1))


def random_state(output: Path, rank: int) -> torch.Tensor:
    return sharded.load(max((output / "checkpoints").iterdir()), rank=rank)["rng"]["torch"]


def test_torchrun_told_to_end_saves_first(project):
    command = ("-m", "fulltilt", "train", "run.yaml", "training.epochs=100000", "training.output=stopped")
    process = torchrun(project, 2, *command)
    log = project / "stopped" / "log.jsonl"
    deadline = time.monotonic() + 40
    while '"epoch": 2' not in (log.read_text() if log.exists() else "") and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    with process:
        out, _ = process.communicate(timeout=40)
    assert process.returncode != 0
    assert "SIGTERM: leaving at step" in out, out
    last = json.loads(log.read_text().splitlines()[-1])
    assert last["kind"] == "end"
    assert load_checkpoint(max((project / "stopped" / "checkpoints").iterdir()))["step"] == last["step"]
