"""The overlay that keeps a script's folder as it is. The functions of `os` are replaced in processes of their own."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.job import NO_ROOM
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


def test_libraries_that_open_files_themselves_leave_it_byte_identical(folder: Path) -> None:
    shutil.copy(SCRIPTS / "natives.py", folder)
    with contextlib.closing(sqlite3.connect(folder / "old.db")) as database:
        database.execute("create table kept (value)")
        database.execute("insert into kept values (1)")
        database.commit()
    before = contents(folder)
    seen = observe(parse(["natives.py"]), full=True)
    assert seen.exit_status == 0, seen.notes
    assert contents(folder) == before
    assert not seen.notes


def test_paths_relative_to_open_folders_leave_it_byte_identical(folder: Path) -> None:
    shutil.copy(SCRIPTS / "descriptors.py", folder)
    (folder / "tree" / "deep").mkdir(parents=True)
    (folder / "tree" / "deep" / "leaf.txt").touch()
    before, known = contents(folder), (folder / "data.bin").stat()
    seen = observe(parse(["descriptors.py"]))
    assert seen.exit_status == 0, seen.notes
    assert contents(folder) == before
    assert sorted(folder.iterdir()) == sorted({folder / Path(name).parts[0] for name in before})  # no pipe, no folder
    assert (folder / "data.bin").stat()[:9] == known[:9]
    assert seen.notes == ("the script ended without a step of an optimizer",)


def test_without_a_shield_it_writes(folder: Path) -> None:
    shutil.copy(SCRIPTS / "writes.py", folder)
    assert observe(parse(["writes.py"]), full=True, shield=False).exit_status == 0
    assert (folder / "runs" / "step-7.pt").exists()
    assert not (folder / "kept.txt").exists()


def test_what_could_not_be_held_off_is_said(folder: Path) -> None:
    (folder / "train.py").write_text("import subprocess; subprocess.run(['touch', 'made.txt'], check=True)")
    seen = observe(parse(["train.py"]))
    assert any("1 file was made" in note and "made.txt" in note for note in seen.notes)


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


def test_folders_that_everybody_writes_into_are_not_compared(tmp_path: Path, temporary: Path) -> None:
    (temporary / "of-another-program").touch()
    (tmp_path / "mine.txt").touch()
    assert state([temporary, Path("/"), Path("/tmp"), Path("/dev/shm")]) == {}
    assert list(state([temporary.parent])) == [str(tmp_path / "mine.txt")]  # nor where they lie within another


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


def test_a_folder_is_no_file_to_remove_and_a_file_no_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to("folder")
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(folder)])
    for name, as_folder, error in (("folder", False, IsADirectoryError), ("old.txt", True, NotADirectoryError)):
        whole = str(folder / name)
        with pytest.raises(error):
            overlay.remove(whole, whole, folder=as_folder)
        assert overlay.exists(whole)
    link = str(folder / "link")
    overlay.remove(link, link, folder=False)
    assert not overlay.exists(link)
    assert (folder / "link").is_symlink()


def test_a_folder_that_is_renamed_takes_along_what_is_in_both_layers(folder: Path, tmp_path: Path) -> None:
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(folder)])
    (folder / "folder" / "gone.txt").touch()
    overlay.remove(None, str(folder / "folder" / "gone.txt"), folder=False)
    Path(overlay.writing(folder / "folder" / "new.txt", keep=False)).touch()
    overlay.move(folder / "folder", folder / "renamed")
    assert overlay.names(str(folder / "renamed")) == ["inner.txt", "new.txt"]
    assert not overlay.exists(str(folder / "folder"))
    assert (folder / "folder" / "gone.txt").exists()


def test_a_file_too_large_to_be_copied_is_refused_with_both_sizes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = Overlay(str(tmp_path / "over"), guarded=[str(folder)])
    large = folder / "folder" / "large.bin"
    with large.open("wb") as file:
        file.truncate(6_000_000_000)  # a hole: it takes no room itself
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000_000_000))
    with pytest.raises(OSError, match=r"6\.0 GB, of 10\.0 GB free") as raised:
        overlay.writing(large, keep=True)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(large)
    assert NO_ROOM in str(raised.value)
    with pytest.raises(OSError, match="GB free"):
        overlay.move(folder / "folder", folder / "renamed")
    assert overlay.exists(str(large))
    overlay.writing(large, keep=False)  # made anew: nothing is copied
    assert Path(overlay.writing(folder / "kept.txt", keep=True)).read_text() == "kept\n"


def test_a_script_that_changes_such_a_file_ends_with_that_reason(folder: Path) -> None:
    with (folder / "large.bin").open("wb") as file:
        file.truncate(shutil.disk_usage(tempfile.gettempdir()).total)
    (folder / "train.py").write_text("open('large.bin', 'r+b')")
    seen = observe(parse(["train.py"]))
    assert seen.ended == "failed"
    assert any(NO_ROOM in note and "large.bin" in note for note in seen.notes)
