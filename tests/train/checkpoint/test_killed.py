"""kill -9 at random moments, and several processes in one folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fulltilt.train.checkpoint import Checkpoints

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


def test_killed_thirty_times_training_ends_with_the_same_weights(tmp_path):
    told = json.loads(run("killed.py", tmp_path, KILLS, 0))
    assert told["killed"] == KILLS
    lives = told["lives"]
    assert sum(life["begin"] > 0 for life in lives) >= KILLS / 2, "too few lives went on from a checkpoint"
    assert sum(life["leftovers"] for life in lives) >= 3, "too few were killed while they wrote"
    whole, killed = Checkpoints(tmp_path / "whole"), Checkpoints(tmp_path / "killed")
    first, second = whole.load(), killed.load()
    assert first["step"] == second["step"] == 120
    for folder in [tmp_path / "killed", *tmp_path.glob("finished-*")]:
        assert Checkpoints(folder).latest().read_bytes() == whole.latest().read_bytes(), "weights, states and all"
        assert not list(folder.glob(".*"))


def test_processes_in_one_folder(tmp_path):
    highest, left = run("two.py", tmp_path, 3, 25).split()
    assert float(highest) == 2024, "the best is still there"
    assert int(left) >= 2
