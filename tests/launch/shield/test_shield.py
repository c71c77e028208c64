"""The overlay that keeps a script's folder as it is. The functions of `os` are replaced in processes of their own."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
from fulltilt.launch.shield.overlay import Overlay
from fulltilt.launch.untouched import changes, state

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "inner.txt").write_text("inner\n")
    (folder / "old.txt").write_text("old\n")
    (folder / "kept.txt").write_text("kept\n")
    (folder / "data.bin").write_bytes(b"data")
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_script_that_writes_at_every_step_leaves_its_folder_byte_identical(folder: Path) -> None:
    shutil.copy(SCRIPTS / "writes.py", folder)
    before = contents(folder)
    seen = observe(parse(["writes.py"]), full=True)
    assert seen.exit_status == 0, seen.notes  # it asserts itself that it sees what it has written
    assert len(seen.steps) == 6
    assert seen.outside["checkpoint"] > 0
    assert contents(folder) == before
    assert not seen.notes


def test_libraries_that_open_files_themselves_leave_it_byte_identical(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(SCRIPTS / "natives.py", folder)
    with contextlib.closing(sqlite3.connect(folder / "old.db")) as database:
        database.execute("create table kept (value)")
        database.execute("insert into kept values (1)")
        database.commit()
    (tmp_path / "stand_ins").mkdir()
    monkeypatch.setenv("STAND_INS", str(tmp_path / "stand_ins"))
    before = contents(folder)
    seen = observe(parse(["natives.py"]), full=True)
    assert seen.exit_status == 0, seen.notes
    assert contents(folder) == before
    assert not seen.notes


def test_without_a_shield_it_writes(folder: Path) -> None:
    shutil.copy(SCRIPTS / "writes.py", folder)
    assert observe(parse(["writes.py"]), full=True, shield=False).exit_status == 0
    assert (folder / "runs" / "step-7.pt").exists()
    assert not (folder / "kept.txt").exists()


def test_what_could_not_be_held_off_is_said(folder: Path) -> None:
    (folder / "train.py").write_text("import subprocess; subprocess.run(['touch', 'made.txt'], check=True)")
    seen = observe(parse(["train.py"]))
    assert any("1 files were made" in note and "made.txt" in note for note in seen.notes)


def test_changes(folder: Path) -> None:
    before = state([folder])
    (folder / "kept.txt").unlink()
    (folder / "old.txt").write_text("older\n")
    (folder / "new.txt").touch()
    made, gone, other = changes(before, state([folder]))
    assert "made" in made
    assert "new.txt" in made
    assert "removed" in gone
    assert "kept.txt" in gone
    assert "changed" in other
    assert "old.txt" in other
    assert changes(before, before) == ()
    after = state([folder])
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_text("of who commits meanwhile")
    assert changes(after, state([folder])) == ()


def test_which_paths_are_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hub")
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(tmp_path / "project")], free=[str(tmp_path / "project/out")])
    assert overlay.covers(str(tmp_path / "project"))
    assert overlay.covers(str(tmp_path / "project" / "best.pt"))
    assert overlay.covers("/data/runs/best.pt")
    assert not overlay.covers(str(tmp_path / "elsewhere"))  # temporary
    assert not overlay.covers(str(tmp_path / "over" / "files" / "x"))
    assert not overlay.covers(str(tmp_path / "project" / "out" / "rank-0.json"))
    assert not overlay.covers("/dev/shm/torch_1")
    assert not overlay.covers("/data/hub/model.safetensors")


def test_a_script_within_a_cache_or_in_shared_memory_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    project = tmp_path / "hf" / "project"
    monkeypatch.setenv("TORCH_HOME", str(project / "weights"))
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(project), "/dev/shm/run"])
    assert overlay.covers(str(project / "best.pt"))
    assert overlay.covers("/dev/shm/run/best.pt")
    assert not overlay.covers(str(project / "weights" / "resnet.pt"))
    assert not overlay.covers(str(tmp_path / "hf" / "hub"))
    assert not overlay.covers("/dev/shm/torch_1")


def test_a_script_in_the_temporary_folder_itself_does_not_cover_all_of_it(tmp_path: Path) -> None:
    overlay = Overlay(str(tmp_path / "over"), guarded=["/", "/tmp"])
    assert not overlay.covers("/tmp/pymp-1/listener")
    assert overlay.covers("/home/me/best.pt")


def test_a_folder_that_was_removed_and_made_again_is_empty(folder: Path, tmp_path: Path) -> None:
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(folder)])
    whole = str(folder / "folder")
    overlay.remove_tree(whole, whole)
    assert not overlay.exists(whole)
    overlay.make_folder(whole, whole, 0o777)
    assert overlay.exists(whole)
    assert overlay.names(whole) == []
    with pytest.raises(FileNotFoundError):
        overlay.reading(str(folder / "folder" / "inner.txt"))
    assert (folder / "folder" / "inner.txt").exists()
