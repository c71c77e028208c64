"""The tables of keys and settings: complete, and as the code has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from fulltilt.launch.settings import SETTINGS
from fulltilt.train.config.config import Config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def options():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import options as module
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return module


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if "`" in line]
    return {row[0].strip("`"): row for row in cells if row[0].startswith("`")}


def sections(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= sections(part)
    return found


def test_every_section_has_a_table(options):
    assert {model for _, model in options.SECTIONS} == sections(Config) - {Config}


def test_a_key_says_its_default_what_is_allowed_and_what_it_means(options):
    found = rows(options.keys())
    assert found["epochs"] == ["`epochs`", "`10`", "a whole number ≥ 1", "Passes over the training data."]
    assert found["length"][1] == "required"
    assert found["shuffle"][1] == "`true`", "as YAML has it"
    assert found["max_steps"][1] == "`null`"
    assert found["val_batch_size"][3] == "null: as `batch_size`."
    assert all(all(row) for row in found.values())


def test_a_key_without_a_meaning_is_noticed(options, monkeypatch):
    known = options._meanings()
    monkeypatch.setattr(options, "_meanings", lambda: {key: text for key, text in known.items() if key[1] != "lr"})
    with pytest.raises(KeyError, match="lr"):
        options.keys()


def test_every_setting_of_a_run_has_a_row_with_its_level(options):
    found = rows(options.settings())
    assert {name: row[1] for name, row in found.items()} == {name: kind.level for name, kind in SETTINGS.items()}
