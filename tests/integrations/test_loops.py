"""Loops that are watched from inside: one's own, Lightning's, Hugging Face's. In processes of their own: hooks stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.scripts.task import BATCH, BATCH_SECONDS, EPOCHS, SAMPLES

SCRIPTS = Path(__file__).parent / "scripts"
PEERS = Path(sys.prefix) / "peers"
"""Where `make test` puts transformers, apart from the environment."""
STEPS = EPOCHS * SAMPLES // BATCH
START = """
import runpy, sys
sys.path.append(sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script: str, folder: Path) -> dict[str, Any]:
    out = folder / "found.json"
    command = [sys.executable, "-c", START, str(PEERS), str(SCRIPTS / script), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def needs(library: str) -> None:
    if PathFinder.find_spec(library, [*sys.path, str(PEERS)]) is None:
        pytest.skip(f"{library} is not installed")


def check(summary: dict[str, Any], line: str) -> None:
    """What holds for every loop over the task."""
    assert summary["steps"] == STEPS
    assert sum(summary["phases"].values()) == pytest.approx(1)
    assert {"data wait", "forward", "backward", "optimizer", "epoch start"} <= set(summary["phases"])
    assert summary["data_wait"] == pytest.approx(summary["phases"]["data wait"] + summary["phases"]["epoch start"])
    trained = 1 - summary["phases"].get("eval", 0) - summary["phases"].get("checkpoint", 0)
    rate = (STEPS - 1) * BATCH / (summary["seconds"] * trained)
    assert summary["samples_per_second"] == pytest.approx(rate)
    assert summary["machine"]["samples"] >= 1
    assert summary["machine"]["cpu"]["util"]["mean"] > 0
    assert summary["machine"]["process"]["pid"] > 0
    assert {"number", "phases", "samples"} <= set(summary["observation"]["steps"][-1])
    assert line.startswith(f"fulltilt: {STEPS} steps, ")
    assert f"; data wait {100 * summary['data_wait']:.1f} %; " in line
    assert line.endswith(f"train_accuracy {summary['metrics'][-1]['train_accuracy']:.4g}")


def check_slow(summary: dict[str, Any]) -> None:
    """Nobody loads beside the loop: each batch is waited for."""
    assert summary["data_wait"] * summary["seconds"] >= 0.99 * (STEPS - 1) * BATCH_SECONDS
    evaluated = EPOCHS * (SAMPLES // BATCH - 1) * BATCH_SECONDS  # one may be fetched before anything is evaluated
    assert summary["phases"]["eval"] * summary["seconds"] >= 0.99 * evaluated
    assert summary["phases"]["checkpoint"] > 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("plain.py", tmp_path_factory.mktemp("plain"))


def test_a_loop_of_ones_own(plain):
    check(plain["plain"], plain["lines"][0])
    assert [epoch["train_accuracy"] for epoch in plain["plain"]["metrics"]] == pytest.approx(
        [right / SAMPLES for right in plain["right"]]
    )
    (loader,) = plain["plain"]["observation"]["loaders"]
    assert (loader["role"], loader["num_workers"], loader["samples"]) == ("train", 1, SAMPLES)
    item = next(stage for stage in loader["stages"] if stage["name"] == "item")
    assert item["seconds"] >= 0.002


def test_it_trains_as_it_would_alone(plain):
    assert plain["same"]


def test_what_comes_after_is_not_counted(plain):
    assert plain["after"]


def test_two_at_a_time_are_refused(plain):
    assert "already" in plain["nested"]


def test_a_long_run_keeps_its_latest_steps_alone(plain):
    own = plain["own"]
    assert plain["kept"] < 8
    assert own["steps"] == EPOCHS * 8
    assert len(own["observation"]["steps"]) < 8
    assert own["samples_per_second"] > 0
    assert "data wait" in own["phases"]


def test_a_loop_that_fails_is_summed_up_and_not_shown(plain):
    assert len(plain["lines"]) == 1
    assert plain["failed"].startswith("fulltilt: 1 step: too few")


def test_a_metric_that_fails_at_the_end_is_said_and_costs_nothing_else(plain):
    """What comes after it in the script shows that the process can watch again."""
    broken = plain["broken"]
    assert broken["metrics_problem"] == "RuntimeError: nothing is right\nnor wrong"
    assert broken["steps"] == EPOCHS * 8
    assert broken["line"].endswith("; metrics failed: RuntimeError: nothing is right")


def test_a_loop_that_was_forgotten_ends_when_the_next_begins(plain):
    assert plain["steps"] == [EPOCHS * 8, EPOCHS * 2]
    assert len(plain["lines"]) == 1


def test_under_diagnose_it_leaves_the_watching_to_it(plain):
    assert plain["under diagnose"]["steps"] == 0
    assert plain["under diagnose"]["phases"] == {}
    assert "watches this process already" in plain["under diagnose"]["problem"]
    assert plain["waited under diagnose"] is None
    assert 0 < plain["counted under diagnose"]["train_accuracy"] < 1


def test_its_folder_is_gone_with_the_process(plain):
    assert not Path(plain["folder"]).exists()


def test_lightning(tmp_path):
    needs("lightning")
    found = run("with_lightning.py", tmp_path)
    (line,) = found["lines"]
    check(found["summary"], line)
    check_slow(found["summary"])
    assert len(found["summary"]["metrics"]) == EPOCHS
    assert found["logged"] == pytest.approx(found["summary"]["metrics"][-1]["train_accuracy"])


def test_hugging_face(tmp_path):
    needs("transformers")
    needs("accelerate")
    found = run("with_huggingface.py", tmp_path)
    (line,) = found["lines"]
    check(found["summary"], line)
    check_slow(found["summary"])
    assert found["logged"] == [epoch["train_accuracy"] for epoch in found["summary"]["metrics"]]
    assert len(found["logged"]) == EPOCHS
