"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.files import cache_home, check_writable, write_whole


def test_caches_lie_where_the_user_has_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_home() == tmp_path / "caches" / "fulltilt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home() == tmp_path / ".cache" / "fulltilt"


def test_a_user_without_a_home_has_caches_among_temporary_files(tmp_path, monkeypatch):
    """Not in a folder that is called ~."""

    def homeless(_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(homeless))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_home() == tmp_path / f"cache-{os.getuid()}" / "fulltilt"


def test_the_new_content_replaces_the_old_and_leaves_nothing_aside(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("old")
    write_whole(file, "new é")
    assert file.read_text(encoding="utf-8") == "new é"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_failure_is_one_line_and_keeps_the_old_content(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(FulltiltError, match=r"can't write .*page.html \(No space left on device\)"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_names_that_are_not_utf_8_are_the_bytes_that_they_are(tmp_path):
    write_whole(tmp_path / "page.html", os.fsdecode(b"caf\xe9.jpg \xc3\xa9"))
    assert (tmp_path / "page.html").read_bytes() == b"caf\xe9.jpg \xc3\xa9"


def test_others_may_read_as_far_as_the_umask_lets_them(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "page.html", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640


def test_a_link_keeps_pointing_at_its_file(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to("there/page.html")
    write_whole(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "page.html").read_text() == "new"


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe, option="--html")
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "new")
    reader.join(10)
    assert got == ["new"]
    assert pipe.is_fifo()


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path):
    with pytest.raises(InputError, match=r"--html: .* is a folder"):
        check_writable(tmp_path, option="--html")
    with pytest.raises(InputError, match="there is no folder"):
        check_writable(tmp_path / "none" / "page.html", option="--html")
    with pytest.raises(InputError, match="File name too long"):
        check_writable(tmp_path / ("a" * 300), option="--html")
