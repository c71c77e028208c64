"""Our options and the script's, on one command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fulltilt.cli import app

STANDS = "fulltilt: --dry-run stands after train.py, so it goes to train.py; for fulltilt, write it before: "


def said(*words: str) -> list[str]:
    """Lines on standard error until the script is run."""
    done = CliRunner().invoke(app, ["run", "--no-tune", *words])
    assert done.exit_code == 0, done.output
    return done.stderr.splitlines()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys, json\nlevels, fully = 1, 2\n")
    return tmp_path


def test_what_is_written_after_the_script_is_said_to_be_the_scripts() -> None:
    assert said("train.py", "--dry-run") == [f"{STANDS}fulltilt run --dry-run train.py"]
    assert said("train.py", "x", "--dry-run=1", "y") == [f"{STANDS}fulltilt run --dry-run=1 train.py"]
    assert said("train.py", "--max-seconds", "10", "--json", "a b.json", "--lr", "1") == [
        "fulltilt: --max-seconds and --json stand after train.py, so they go to train.py; for fulltilt, write them "
        "before: fulltilt run --max-seconds 10 --json 'a b.json' train.py"
    ]
    assert said("-m", "train", "--no-tune") == [
        "fulltilt: --no-tune stands after train, so it goes to train; for fulltilt, write it before: "
        "fulltilt run --no-tune -m train"
    ]


@pytest.mark.parametrize("words", [(), ("--lr", "1"), ("--help",), ("dry-run", "-h"), ("--", "--dry-run")])
def test_other_words_are_no_matter(words: tuple[str, ...]) -> None:
    assert said("train.py", *words) == []


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("parser.add_argument('--max-seconds')", "--max-seconds"),
        ("def main(max_seconds: float = 3.0): ...", "--max-seconds"),
        ("def main(level=3): ...", "--level"),
        ("flags.DEFINE_string('plan', None, '')", "--plan"),
    ],
)
def test_a_script_with_an_option_of_that_name_is_not_warned_of(here: Path, source: str, option: str) -> None:
    (here / "train.py").write_text(f"if 0:\n    {source}\n")
    assert said("train.py", option, "3") == []
    assert said("-m", "train", option, "3") == []
    assert said("train.py", "--html", "3")


def test_diagnose_says_it_too(here: Path) -> None:
    (here / "train.py").write_text("raise SystemExit(3)")
    done = CliRunner().invoke(app, ["diagnose", "train.py", "--full"])
    assert done.stderr.startswith(
        "fulltilt: --full stands after train.py, so it goes to train.py; for fulltilt, write it before: "
        "fulltilt diagnose --full train.py\n"
    )


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_an_option_that_does_not_exist_is_said_with_one_that_does(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--maxseconds", "20", "train.py"])
    assert done.exit_code != 0
    assert str(done.exception) == "there is no option --maxseconds; did you mean --max-seconds?"


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_the_help_says_where_options_go(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert "fulltilt's options go before the script" in done.stdout
    assert "10 to 86400" in done.stdout or command == "diagnose"
