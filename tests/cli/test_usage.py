"""What is said of options that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("typed", "meant"), [("watch", "monitor"), ("profile", "diagnose"), ("tune", "run"), ("doctor", "env")]
)
def test_a_command_by_another_word_is_found_by_what_it_means(typed: str, meant: str) -> None:
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in said(typed, "--whatever")


def test_a_misspelt_command_is_found_by_its_spelling() -> None:
    assert "Did you mean 'monitor'?" in said("moniter")


@pytest.mark.parametrize("typed", ["--bach_size", "--bach-size"])
@pytest.mark.parametrize("value", [("3",), ()])
def test_an_unknown_option_of_train_is_shown_as_typed_and_the_known_one_as_documented(
    typed: str, value: tuple[str, ...]
) -> None:
    assert f"No such option: {typed} (Possible options: --batch_size)" in said("train", typed, *value, "x.yaml")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--epochs", "training.epochs"), ("--clip-norm=1", "training.clip_norm"), ("--source", "data.source")],
)
def test_an_option_that_is_a_key_of_the_configuration_is_said_to_be_one(typed: str, meant: str) -> None:
    option = typed.partition("=")[0]
    told = said("train", "x.yaml", typed, "3")
    assert f"No such option: {option}. It is a key of the configuration: write {meant}=…" in told


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
