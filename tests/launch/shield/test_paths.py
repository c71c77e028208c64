"""Which paths are covered, in temporary folders above all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fulltilt.launch.shield.overlay import Overlay
from fulltilt.launch.shield.paths import Paths


def made(tmp_path: Path, *guarded: str, free: tuple[str, ...] = ()) -> Paths:
    return Paths(str(tmp_path / "over"), guarded=guarded, free=free)


def test_which_paths_are_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hub")
    paths = made(tmp_path, str(tmp_path / "project"), free=(str(tmp_path / "project/out"),))
    assert paths.covers(str(tmp_path / "project"))
    assert paths.covers(str(tmp_path / "project" / "best.pt"))
    assert paths.covers("/data/runs/best.pt")
    assert not paths.covers(str(tmp_path / "over" / "files" / "x"))
    assert not paths.covers(str(tmp_path / "project" / "out" / "rank-0.json"))
    assert not paths.covers("/data/hub/model.safetensors")
    assert not paths.covers("/dev/null")


def test_names_of_ones_choice_in_temporary_folders_are_covered(tmp_path: Path) -> None:
    paths = made(tmp_path)
    for name in ("/tmp/run1", "/tmp/run1/best.pt", "/dev/shm/run1/best.pt", "/tmp/rays", str(tmp_path / "elsewhere")):
        assert paths.covers(name)
    for name in ("/tmp", "/dev/shm", "/tmp/ray/session", "/tmp/torchinductor_me/ab/x.cpp", "/tmp/torch_extensions/a"):
        assert not paths.covers(name)


def test_caches_in_temporary_folders_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/tmp/built")
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp")  # which does not make a cache of everything in it
    paths = made(tmp_path)
    assert not paths.covers("/tmp/built/op.so")
    assert paths.covers("/tmp/run1")


def test_a_script_within_a_cache_or_in_shared_memory_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    project = tmp_path / "hf" / "project"
    monkeypatch.setenv("TORCH_HOME", str(project / "weights"))
    paths = made(tmp_path, str(project), "/dev/shm/run")
    assert paths.covers(str(project / "best.pt"))
    assert paths.covers("/dev/shm/run/best.pt")
    assert not paths.covers(str(project / "weights" / "resnet.pt"))
    assert not paths.covers(str(tmp_path / "hf" / "hub"))


def test_a_name_that_tempfile_has_drawn_is_left_alone_by_all_processes(tmp_path: Path) -> None:
    here, there = made(tmp_path), made(tmp_path)
    assert here.covers("/tmp/tmpab12cd")
    assert here.claim("/tmp/tmpab12cd")
    assert here.claim("/dev/shm/pym-1-ab12cd")
    for paths in (here, there):
        assert not paths.covers("/tmp/tmpab12cd")
        assert not paths.covers("/tmp/tmpab12cd/deep/file")
        assert not paths.covers("/dev/shm/pym-1-ab12cd")
        assert paths.covers("/tmp/tmpab12cdef")
    assert not here.claim("/tmp/run1/tmpab12cd")  # one that was asked for in a covered folder is that folder's
    assert not here.claim("/home/me/tmpab12cd")
    here.disclaim("/tmp/tmpab12cd")
    assert here.covers("/tmp/tmpab12cd")


def test_a_script_in_the_temporary_folder_itself_does_not_cover_all_of_it(tmp_path: Path) -> None:
    paths = made(tmp_path, "/", "/tmp", "/dev/shm")
    assert paths.claim("/tmp/pymp-1")
    assert paths.claim("/dev/shm/pym-1")
    assert not paths.covers("/tmp/pymp-1/listener")
    assert not paths.covers("/dev/shm/pym-1")
    assert paths.covers("/tmp/best.pt")
    assert paths.covers("/home/me/best.pt")


def test_a_temporary_folder_within_another(tmp_path: Path, temporary: Path) -> None:
    """As where a script makes one, and starts its helpers with TMPDIR."""
    name = Path(*temporary.parts[:3])
    if name.parent != Path("/tmp"):
        pytest.skip("temporary files are not in /tmp")
    paths = made(tmp_path)
    assert paths.covers(str(temporary / "chosen"))
    assert paths.claim(str(temporary / "tmpab12cd"))
    assert not paths.covers(str(temporary / "tmpab12cd"))
    assert not paths.covers(str(temporary))
    paths = Paths(str(tmp_path / "other"), guarded=(), free=())
    assert paths.claim(str(name))
    assert not paths.covers(str(temporary / "chosen"))


def test_a_temporary_folder_that_is_a_link_is_one_by_both_names(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(temporary)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "link"))
    paths = made(tmp_path)
    assert paths.claim(str(tmp_path / "link" / "tmpab12cd"))
    assert not paths.covers(str(temporary / "tmpab12cd" / "file"))
    assert not paths.covers(str(temporary))


def test_a_temporary_folder_that_is_removed_stays_and_keeps_what_is_left_alone(tmp_path: Path, temporary: Path) -> None:
    overlay = Overlay(str(tmp_path / "over"), guarded=[])
    (temporary / "run1").mkdir()
    (temporary / "run1" / "best.pt").touch()
    (temporary / "notes.txt").touch()
    (temporary / "tmpab12cd").mkdir()
    assert overlay.paths.claim(str(temporary / "tmpab12cd"))
    whole = overlay.listed(temporary)
    assert whole == str(temporary)
    overlay.remove_tree(temporary, whole)
    assert overlay.names(whole) == ["tmpab12cd"]
    assert sorted(os.listdir(temporary)) == ["notes.txt", "run1", "tmpab12cd"]
    assert str(overlay.writing(temporary / "new.txt", keep=False)).startswith(str(tmp_path / "over"))
