"""What `fulltilt run` says and writes at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fulltilt.bench.commands import CommandFigures, figures
from fulltilt.cli import app
from fulltilt.cli.run import _unit, _write
from fulltilt.diagnose import LossCurves, Outcome, Trial, diagnose
from fulltilt.diagnose.serial import read
from fulltilt.launch.search.plan import Key, Plan
from fulltilt.launch.search.tune import NotTuned, Tuned
from fulltilt.measure.observation import Observation, Step


def seen(samples: int | None) -> Observation:
    step = Step(number=0, started=0.0, seconds=0.1, phases={"forward": 0.1}, samples=samples)
    return Observation(command=("train.py",), ended="script", seconds=1.0, steps=(step,) * 5)


@pytest.mark.parametrize(("samples", "unit"), [(8, "samples/s"), (None, "steps/s")])
def test_samples_where_a_loader_counts_them_and_steps_elsewhere(samples: int | None, unit: str) -> None:
    assert _unit(None, seen(samples)) == unit
    found = NotTuned(reason="", diagnosis=diagnose(seen(samples)))
    assert _unit(found, None) == unit
    assert _unit(found, seen(3)) == unit, "the rate before was counted when the plan was made"


def test_nothing_is_said_of_what_was_not_seen() -> None:
    assert _unit(None, None) == "per second"


def test_figures_that_are_no_numbers_make_no_broken_json(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    watched = seen(8)
    lost = replace(watched, steps=(replace(watched.steps[0], loss=nan), *watched.steps[1:]))
    settings = {"loader.num_workers": 2}
    key = Key(command=("train.py",), content="", hardware="", versions={})
    found = Tuned(
        plan=Plan(key=key, level="exact", settings=settings, before=80.0, after=nan, limit=inf),
        diagnosis=diagnose(lost),
        trials=(Trial(title="2 workers", settings={}, samples_per_second=90.0, kept=True, reason="+12 %", noise=nan),),
        after=Outcome(samples_per_second=90.0, settings=settings, limit=inf),
        losses=LossCurves(before=(1.0, nan), after=(1.0, inf), band=(nan,)),
    )
    path = tmp_path / "run.json"
    _write(found.plan, found, lost, None, html=None, as_json=path)

    def refuse(word: str) -> None:
        raise AssertionError(f"JSON has no {word}")

    data = json.loads(path.read_text(), parse_constant=refuse)
    assert data["losses"] == {"before": [1.0, None], "after": [1.0, None], "band": [None]}
    assert (data["plan"]["after"], data["trials"][0]["noise"], data["after"]["limit"]) == (None, None, None)
    assert data["after"]["observation"]["steps"][0]["loss"] is None

    outcome = read(path)
    assert isinstance(outcome, Outcome)
    assert outcome.limit is None
    compared = CliRunner().invoke(app, ["compare", str(path), str(path)])
    assert compared.exit_code == 0, compared.output
    one = CommandFigures(name="a", command="train.py", seconds=1.0, max_seconds=60.0, **figures(data))
    assert (one.before, one.limit, one.tried) == (80.0, None, {"2 workers": "+12 %"})
