"""What `fulltilt run` says and writes at its end."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fulltilt.bench.commands import CommandFigures, figures
from fulltilt.cli import app
from fulltilt.cli.run import _write
from fulltilt.cli.run_view import summarise
from fulltilt.diagnose import LossCurves, Outcome, Trial, diagnose
from fulltilt.diagnose.serial import read
from fulltilt.errors import InputError
from fulltilt.launch.command import parse
from fulltilt.launch.search.plan import Key, Plan, default_path, key_of, write
from fulltilt.launch.search.tune import Tuned, Tuner
from fulltilt.measure.observation import Observation, Step


def seen(samples: int | None) -> Observation:
    step = Step(number=0, started=0.0, seconds=0.1, phases={"forward": 0.1}, samples=samples)
    return Observation(command=("train.py",), ended="script", seconds=1.0, steps=(step,) * 5)


KEY = Key(command=("train.py",), content="", hardware="", versions={})
PAYS = Plan(
    key=KEY, level="exact", settings={"loader.num_workers": 2}, before=48.6, after=725.0, limit=1449.0,
    unit="samples/s",
)  # fmt: skip
NOTHING = replace(PAYS, settings={}, after=48.6)


@pytest.mark.parametrize(
    ("plan", "searched", "measured", "said"),
    [
        (PAYS, True, True, "before 48.6 samples/s, after 80 (1.6×), its step's limit 1,449: 2 workers"),
        (PAYS, True, False, "before 48.6 samples/s, after 725 in its trials (15×), its step's limit 1,449: 2 workers"),
        (
            PAYS, False, True,
            "an earlier search measured 48.6 samples/s before, its step's limit 1,449; this run 80 (1.6×): 2 workers",
        ),
        (
            PAYS, False, False,
            "an earlier search measured 48.6 samples/s before, its step's limit 1,449; with its plan 725 (15×): "
            "2 workers",
        ),
        (NOTHING, True, False, "run as it is: the search measured 48.6 samples/s, its step's limit 1,449"),
        (NOTHING, False, False, None),
    ],
)  # fmt: skip
def test_figures_of_a_search_are_not_told_as_those_of_the_run(
    plan: Plan, searched: bool, measured: bool, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = seen(8)
    found = Tuned(plan=plan, diagnosis=diagnose(watched)) if searched else None
    summarise(plan, found, watched if measured else None, None)
    assert capsys.readouterr().err == ("" if said is None else f"fulltilt: {said}\n")


@pytest.mark.parametrize(
    ("before", "unit", "measured"),
    [
        (601.0, "samples/s", "measured 601 samples/s and "),
        (601.0, None, "measured 601 per second and "),
        (None, None, ""),
    ],
)
def test_a_plan_that_changes_nothing_is_told_with_what_it_comes_from(
    before: float | None, unit: str | None, measured: str, script: Path
) -> None:
    script.write_text("print('ran')")
    command = parse(["train.py"])
    path = default_path(command)
    plan = Plan(key=key_of(command), level="numeric", settings={}, before=before, limit=3313.0)
    write(plan if unit is None else replace(plan, unit=unit), path)
    done = CliRunner().invoke(app, ["run", "train.py"])
    assert done.stderr.splitlines() == [
        f"fulltilt: the plan found before ({path}): an earlier search {measured}found nothing that pays; --tune "
        "searches again"
    ]


@pytest.mark.parametrize("settings", [{}, {"loader.num_workers": 2}])
def test_nothing_found_on_a_busy_machine_is_no_plan(
    settings: dict[str, Any], script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = replace(diagnose(seen(8)), unsettled=True)
    found = Tuned(plan=replace(PAYS, settings=settings), diagnosis=busy)
    monkeypatch.setattr(Tuner, "tune", lambda _: found)
    done = CliRunner().invoke(app, ["run", "--dry-run", "train.py"])
    kept = list(script.parent.rglob("*.toml"))
    assert bool(kept) == bool(settings)
    assert (
        "fulltilt: nothing was found that pays, but the machine was busier while the script was watched than while its "
        "limit was measured; no plan is kept: try again when it is quiet" in done.stderr.splitlines()
    ) == (not settings)
    assert ("no plan: the script would be run as it is" in done.stdout) == (not settings)


BROKEN = AttributeError("'float' object has no\nattribute 'numerator'")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "train.py"
    made.write_text("import sys; open('ran', 'w').close(); sys.exit(7)")
    return made


def searched(error: BaseException, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    def tune(_: Any) -> None:
        raise error

    monkeypatch.setattr(Tuner, "tune", tune)
    return CliRunner().invoke(app, ["run", *words, "train.py"])


def test_a_search_that_breaks_does_not_keep_the_script_from_running(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = searched(BROKEN, monkeypatch, "--json", "run.json")
    assert done.exit_code == 7
    assert script.with_name("ran").exists()
    (said,) = [line for line in done.stderr.splitlines() if "failed" in line]
    file = Path(said.rpartition("the traceback in ")[2])
    assert said == (
        "fulltilt: looking for a plan failed, as it should not (AttributeError: 'float' object has no attribute "
        f"'numerator'): the script is run as it is; to report: the traceback in {file}"
    )
    told = file.read_text()
    assert told.startswith("Traceback")
    assert "in tune" in told
    assert "AttributeError" in json.loads(script.with_name("run.json").read_text())["not_tuned"]
    assert not list(file.parent.glob("*.toml")), "no plan is kept"


def test_the_traceback_is_shown_where_it_can_not_be_kept(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.with_name("cache").write_text("no folder")
    done = searched(BROKEN, monkeypatch)
    assert done.exit_code == 7
    assert "to report: Traceback" in done.stderr


@pytest.mark.parametrize("words", [[], ["--no-tune"], ["--plan", "plan.toml"]])
def test_without_a_home_the_script_runs(script: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a container's user whom nobody knows
    monkeypatch.setattr("tempfile.tempdir", str(script.parent))
    assert searched(BROKEN, monkeypatch, *words).exit_code == 7
    assert script.with_name("ran").exists()
    kept = list(script.parent.glob(f"cache-{os.getuid()}/fulltilt/plans/*.traceback.txt"))
    assert len(kept) == ("--no-tune" not in words)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), InputError("as was said")])
def test_what_ends_a_search_on_purpose_ends_it(
    error: BaseException, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = searched(error, monkeypatch)
    assert done.exit_code != 7
    assert not script.with_name("ran").exists()


def test_one_of_several_ranks_does_not_run_alone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert searched(BROKEN, monkeypatch).exception is BROKEN
    assert not script.with_name("ran").exists()


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
