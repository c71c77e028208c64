"""Modules that a configuration names: where they are looked for, here and in processes that are started."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from fulltilt.errors import InputError
from fulltilt.train.config import references
from fulltilt.train.config.file import read_config
from fulltilt.train.config.references import found, look_beside


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A working directory, and another folder with a configuration. Imports stay: each module has its own name."""
    here, mine = tmp_path / "here", tmp_path / "mine"
    here.mkdir()
    mine.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(references, "_beside", [])
    return here, mine


def where(folder, module):
    (folder / f"{module}.py").write_text(f"def where():\n    return {folder.name!r}\n")


def test_beside_the_file_then_in_the_working_directory(folders):
    here, mine = folders
    where(mine, "both_have_this")
    where(here, "both_have_this")
    where(here, "only_here")
    look_beside(mine / "config.yaml")
    assert found("model.name", "both_have_this:where")() == "mine", "a project's own, wherever it is trained from"
    assert found("model.name", "only_here:where")() == "here"


def test_the_folder_of_a_relative_path(folders, monkeypatch):
    where(folders[1], "of_a_relative_path")
    (folders[1] / "config.yaml").write_text("model: {name: 'of_a_relative_path:where'}")
    monkeypatch.chdir(folders[1].parent)
    with pytest.raises(InputError, match=r"1 problem\n  data.source: missing"):  # and none with the model
        read_config(Path("mine/config.yaml"), look_up=True)
    monkeypatch.chdir(folders[0])
    assert found("model.name", "of_a_relative_path:where")() == "mine", "after a change of directory, too"


def test_a_module_that_is_nowhere_says_where_it_was_looked_for(folders):
    look_beside(folders[1] / "config.yaml")
    with pytest.raises(InputError) as caught:
        found("model.name", "nowhere_at_all:where")
    looked = f"{folders[1]} and {folders[0]}"
    assert str(caught.value) == f"model.name: there is no module 'nowhere_at_all' (looked in {looked}, too)"


def test_spawned_processes_find_them(folders):
    where(folders[1], "for_children")
    look_beside(folders[1] / "config.yaml")
    function = found("data.features", "for_children:where")
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # it is sent by name
        assert pool.apply(function) == "mine"
