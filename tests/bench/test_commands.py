"""The benchmark of anybody's commands: real ones here, one that trains and one that fails."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fulltilt.bench.commands import CommandFigures, figures, parse, side_by_side
from fulltilt.cli.bench import bench
from fulltilt.errors import InputError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scripts"

TRAINS = """
import time

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    time.sleep(0.01)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""


def told(**changes):
    found = {"findings": [], "observation": {"attributed": 0.97}, "headroom": 0.0, "verdict": "No headroom."}
    return found | changes


def plan(**changes):
    as_is = {"before": 100.0, "after": 100.0, "limit": None, "verified": "nothing to verify", "settings": {}}
    return as_is | changes


def met(one):
    """Of the time in known phases, and of the speed."""
    return [target.met for target in one.targets]


def test_commands_have_names():
    assert parse(["a=train.py --x 'y z'", "b=-m pkg"]) == {"a": ["train.py", "--x", "y z"], "b": ["-m", "pkg"]}
    for wrong in ("train.py", "=train.py", "a=", "a b=train.py"):
        with pytest.raises(InputError, match="NAME=COMMAND"):
            parse([wrong])
    with pytest.raises(InputError, match="named twice"):
        parse(["a=x.py", "a=y.py"])


def test_figures_of_a_script_that_is_left_as_it_is():
    found = figures({"diagnosis": told(), "plan": plan(), "after": None, "trials": [], "not_tuned": None})
    one = CommandFigures(name="a", command="train.py", seconds=1.0, max_seconds=60.0, **found)
    assert (one.times, met(one), one.cause) == (1.0, [True, True], None)


def test_what_is_slower_or_hardly_known_is_not_met():
    after = {"samples_per_second": 97.0, "remaining": None}
    diagnosis = told(findings=[{"cause": "slow-disk"}])
    slower = figures({"diagnosis": diagnosis, "plan": plan(), "after": after, "trials": [], "not_tuned": None})
    one = CommandFigures(name="a", command="train.py", seconds=1.0, max_seconds=60.0, **slower)
    assert (one.times, met(one), one.cause) == (pytest.approx(0.97), [True, False], "slow-disk")
    diagnosis = told(observation={"attributed": 0.9})
    unknown = figures({"diagnosis": diagnosis, "plan": plan(), "after": None, "trials": [], "not_tuned": None})
    assert met(CommandFigures(name="a", command="train.py", seconds=1.0, max_seconds=60.0, **unknown)) == [False, True]


def test_the_gain_side_by_side_is_the_plans_and_not_that_of_the_whole_run():
    kept = plan(after=250.0, settings={"graphs": True})
    ran = {"diagnosis": told(), "plan": kept, "after": {"samples_per_second": 300.0, "remaining": None}, "trials": []}
    found = figures(ran)
    assert (found["after"], side_by_side(found)) == (300.0, 2.5)
    as_it_is = figures(ran | {"plan": plan(), "after": None})
    assert side_by_side(as_it_is) is None


def test_an_earlier_results_gain_side_by_side_is_that_of_the_trials_that_were_kept():
    tried = {"16 workers": "+100 %", "compiled": "−13 %: slower", "18 workers": "+10 %"}
    assert side_by_side({"settings": {"x": 1}, "tried": tried}) == pytest.approx(2.2)
    undone = tried | {"both": "rolled back: losses left the band", "16 workers alone": "+90 %"}
    assert side_by_side({"settings": {"x": 1}, "tried": undone}) == pytest.approx(1.9)
    assert side_by_side({"settings": {}, "tried": tried}) is None, "left as it is"
    assert side_by_side({"settings": None, "tried": None}) is None
    assert side_by_side({"settings": {"x": 1}, "tried": {}}) is None


def test_a_script_that_was_not_tuned_has_its_reason():
    for diagnosis, attributed in ((told(), 0.97), (None, None)):
        found = figures(
            {"diagnosis": diagnosis, "plan": None, "after": None, "trials": [], "not_tuned": "too few steps"}
        )
        one = CommandFigures(name="a", command="train.py", seconds=1.0, max_seconds=60.0, **found)
        assert (one.problem, met(one)[1], one.attributed) == ("not tuned: too few steps", None, attributed)


@pytest.mark.timeout(180)
def test_real_commands_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "fails.py").write_text("raise SystemExit('no such data')\n")
    result = tmp_path / "found.json"
    words = ["commands", "--max-seconds", "24", "--json", str(result)]
    ended = CliRunner().invoke(bench, [*words, "fails=fails.py", "trains=train.py"])
    assert ended.exit_code == 0, ended.output
    fails, trains = json.loads(result.read_text())["cases"]
    assert "no such data" in fails["problem"]
    assert not any(target["met"] for target in fails["targets"])
    assert trains["attributed"] is not None
    assert trains["command"] == "train.py"
    ended = CliRunner().invoke(bench, [*words, "fails=fails.py --again"])
    kept = json.loads(result.read_text())
    assert [one["name"] for one in kept["cases"]] == ["trains", "fails"], "what was not run now stays"
    assert set(kept["dates"]) == {"trains", "fails"}


@pytest.mark.parametrize("name", ["lightning_plain", "huggingface_plain"])
def test_the_scripts_of_frameworks_know_nothing_of_us(name):
    text = (FOLDER / f"{name}.py").read_text()
    ast.parse(text)
    assert "fulltilt" not in text
