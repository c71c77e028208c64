"""The recipe learns, before and after; two processes train as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.recipes.video.ranks_script import run

from fulltilt.recipes.catalog import RECIPES
from fulltilt.recipes.plain import train_plainly
from fulltilt.train.build import make_trainer

HERE = Path(__file__).parent


def test_it_learns_before_and_after(tmp_path, monkeypatch):
    """Both reach what is wanted. Sixteen videos hold forty actions: one more or less is 0.025."""
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["video"]
    after = make_trainer(recipe.config(small=True)).fit().last[recipe.metric]
    before = train_plainly(recipe.config("before", small=True)).last[recipe.metric]
    assert min(before, after) >= recipe.wanted
    assert abs(before - after) < 0.1


def test_two_processes_train_as_one_with_the_whole_batch(tmp_path, monkeypatch):
    """Sums are rounded in another order: losses of fp32 are compared to 2e-5, of their own size about 2."""
    monkeypatch.chdir(tmp_path)
    expected = run(1)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launch, str(HERE / "ranks_script.py"), str(tmp_path / "found.json"), "2"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert len(found["losses"]) == 9
    assert found["losses"] == pytest.approx(expected["losses"], abs=2e-5)
    assert found["last"] == pytest.approx(expected["last"], abs=2e-5)
    assert expected["losses"][-1] < expected["losses"][0] - 0.1, "something was learnt, so the weights were shared"
