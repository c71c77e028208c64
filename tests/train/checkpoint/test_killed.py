"""kill -9 at random moments, and several processes in one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fulltilt.train.checkpoint import Checkpoints
from fulltilt.train.checkpoint.tree import flatten

SCRIPTS = Path(__file__).parent / "scripts"
KILLS = 30


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", SCRIPTS / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },  # a fork would not survive a driver that is started
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("loop", ["plain", "trainer"])
def test_killed_thirty_times_training_ends_with_the_same_weights(tmp_path, loop):
    told = json.loads(run("killed.py", loop, tmp_path, KILLS, 0).splitlines()[-1])
    assert told["killed"] == KILLS
    lives = told["lives"]
    assert sum(life["begin"] > 0 for life in lives) >= KILLS / 2, "too few lives went on from a checkpoint"
    assert sum(life["leftovers"] for life in lives) >= 3, "too few were killed while they wrote"
    inside = "checkpoints" if loop == "trainer" else "."
    whole = Checkpoints(tmp_path / "whole" / inside)
    expected = whole.load()
    assert expected["step"] == 120
    optimizer = "trainer" if loop == "trainer" else "optimizer"
    for folder in [tmp_path / "killed", *tmp_path.glob("finished-*")]:
        checkpoints = Checkpoints(folder / inside)
        assert not list(checkpoints.folder.glob(".*"))
        state = checkpoints.load()
        for part in ("model", optimizer, "rng"):
            assert_identical(state[part], expected[part])
        if loop == "plain":  # there is no clock and no path in its state
            assert checkpoints.latest().read_bytes() == whole.latest().read_bytes()


def assert_identical(first, second):
    """Bit for bit, by what would be written."""
    first, second = flatten(first), flatten(second)
    assert first.tree == second.tree
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_processes_in_one_folder(tmp_path):
    highest, left = run("two.py", tmp_path, 3, 25).split()
    assert float(highest) == 2024, "the best is still there"
    assert int(left) >= 2
