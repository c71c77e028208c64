"""`make demo`, the first command that a reader is given: its commands can be given, its scripts run and print.

What takes its minutes, `fulltilt diagnose` and `fulltilt run` of its script, is parsed alone; tests/cli runs both.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.docs.commands import check_fulltilt

from fulltilt.cli.run import _write
from fulltilt.diagnose import Outcome, diagnose
from fulltilt.launch.search.plan import Key, Plan
from fulltilt.launch.search.tune import NotTuned, Tuned
from fulltilt.measure.observation import Observation, Step

ROOT = Path(__file__).parents[1]
SLOW = "examples/slow_train.py"
SHORTER = {
    "examples/make_photos.py": ["--count", "16", "--size", "64", "48"],
    SLOW: ["--epochs", "1", "--batch-size", "4", "--size", "32"],
}
"""Said after what the demo says, and so in its place."""


@pytest.fixture(scope="module")
def recipe() -> list[list[str]]:
    """The words of its commands, as make has them, with `.venv` there; what it writes to is left out."""
    command = ["make", "--dry-run", "--old-file=.venv/.installed", "demo"]
    alone = {
        name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"
    }  # `make test`
    printed = subprocess.run(command, cwd=ROOT, env=alone, check=True, capture_output=True, text=True).stdout
    lines = printed.replace("\\\n", " ").splitlines()
    return [shlex.split(re.sub(r" > \S+$", "", line)) for line in lines if line.startswith(".venv/bin/")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which it runs, but for what it makes as it is in the repository."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "runs" / "demo").mkdir(parents=True)
    return folder


def python(place: Path, words: list[str]) -> str:
    command = [sys.executable, *words, *SHORTER.get(words[0], [])]
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
    return done.stdout


def test_its_commands_can_be_given(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    ours = [words[1:] for words in recipe if words[0] == ".venv/bin/fulltilt"]
    assert [words[0] for words in ours] == ["env", "diagnose", "run"]
    for words in ours:
        check_fulltilt(tuple(words))


def test_its_scripts_run(recipe, place):
    """The photographs, and on these the script as diagnose and run are given it."""
    (photos,) = [words[1:] for words in recipe if words[1] == "examples/make_photos.py"]
    python(place, photos)
    assert len(list(place.glob("runs/demo/photos/*/*.jpg"))) == 16
    slow = [words[words.index(SLOW) :] for words in recipe if SLOW in words]
    assert len(slow) == 2
    assert slow[0] == slow[1]
    said = python(place, slow[0])
    assert re.match(r"epoch 1 step   0 loss \d+\.\d{4} accuracy [01]\.\d{3}\n", said)
    assert (place / "runs/demo/model.pt").stat().st_size > 10_000


STEP = Step(number=0, started=0.0, seconds=0.1, phases={"forward": 0.1}, samples=16)
SEEN = Observation(command=("slow_train.py",), ended="script", seconds=1.0, steps=(STEP,) * 5)
PLAN = Plan(
    key=Key(command=("slow_train.py",), content="", hardware="", versions={}), level="exact",
    settings={"loader.num_workers": 2, "loader.persistent_workers": True}, before=80.0, after=200.0, limit=400.0,
    verified="the losses of 40 steps are equal to the last bit",
)  # fmt: skip
AFTER = Outcome(samples_per_second=200.0, settings=PLAN.settings, limit=400.0)
FOUND = Tuned(plan=PLAN, diagnosis=diagnose(SEEN), trials=(), after=AFTER, losses=None)
FASTER = "160 samples/s, 2.00 times as fast (loader.num_workers = 2, loader.persistent_workers = True)"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FOUND, ["before     80 samples/s", f"after      {FASTER}", "limit      400", "equal to the last bit"]),
        (replace(FOUND, after=None), ["after      200 samples/s, 2.50 times as fast"]),
        (
            replace(FOUND, plan=replace(PLAN, settings={}, after=80.0, limit=None), after=None),
            ["80 samples/s, 1.00 times as fast (unchanged)", "limit      not measured"],
        ),
        (NotTuned(reason="busy", diagnosis=diagnose(SEEN)), ["the script was run as it is"]),
    ],
    ids=["faster", "run without figures", "best as it is", "too busy"],
)
def test_before_and_after_are_printed_of_what_run_wrote(recipe, place, found, said):
    (words,) = [words[1:] for words in recipe if words[1] == "examples/before_after.py"]
    (run,) = [words for words in recipe if words[1] == "run"]
    assert run[run.index("--json") + 1] == words[1]
    plan = found.plan if isinstance(found, Tuned) else None
    _write(plan, found, SEEN, None, html=None, as_json=place / words[1])
    printed = python(place, words)
    assert all(part in printed for part in said), printed
