"""What is said of options that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from fulltilt.cli import app


def said(*words: str) -> str:
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--level", "exakt", "x.py"), "Invalid value for '--level': 'exakt' is not one of 'exact', 'numeric'"),
        (("augment", "preview", "--preset", "no", "x.jpg"), "Invalid value for '--preset': 'no' is not one of"),
    ],
)
def test_a_value_that_is_not_allowed_is_said_in_our_words(words: tuple[str, ...], told: str) -> None:
    assert told in said(*words)


@pytest.mark.parametrize("typed", ["--bach_size", "--bach-size"])
@pytest.mark.parametrize("value", [("3",), ()])
def test_an_unknown_option_of_train_is_shown_as_typed_and_the_known_one_as_documented(
    typed: str, value: tuple[str, ...]
) -> None:
    assert f"No such option: {typed} (Possible options: --batch_size)" in said("train", typed, *value, "x.yaml")


@pytest.mark.parametrize("typed", ["--batch_size", "--batch-size"])
def test_either_dash_is_read(typed: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("")
    for words in ((typed, "fast"), (f"{typed}=fast",)):
        done = CliRunner().invoke(app, ["train", str(config), *words])
        assert "data.batch_size: found 'fast'" in str(done.exception)
    assert "Option '--batch_size' requires an argument" in said("train", typed)
    ended = CliRunner().invoke(app, ["train", str(config), "--", f"{typed}=3"])
    assert typed in str(ended.exception), "no option, but an override of a key that there is not"


@pytest.mark.parametrize("command", [("run",), ("diagnose",), ("bench", "feed"), ("bench", "commands", "a=b.py")])
def test_who_asks_for_json_in_a_file_is_told_how(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*command, "--json", "found.json", "train.py"])
    assert str(done.exception) == "there is no option --json; to keep all of it in a file, as JSON: --save FILE"


def test_json_is_a_switch_wherever_it_is_and_save_a_file() -> None:
    def options(command: Any, path: str) -> Iterator[tuple[str, str, bool]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from options(inner, f"{path} {name}")
        for parameter in command.params:
            yield from ((path, option, getattr(parameter, "is_flag", False)) for option in parameter.opts)

    found = list(options(typer.main.get_command(app), "fulltilt"))
    assert {is_flag for _, option, is_flag in found if option == "--json"} == {True}
    assert {is_flag for _, option, is_flag in found if option == "--save"} == {False}
    named: dict[str, set[str]] = {}
    for path, option, _ in found:
        named.setdefault(path, set()).add(option)
    assert not [path for path, options in named.items() if {"--json", "--save"} <= options]


def test_json_where_nothing_is_saved_is_an_unknown_option() -> None:
    assert "No such option: --json" in said("augment", "preview", "--json", "x.jpg")
