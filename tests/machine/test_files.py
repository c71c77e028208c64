"""Files written whole or not at all."""

from __future__ import annotations

import os

import pytest

from fulltilt.errors import InputError
from fulltilt.machine.files import check_writable, write_whole


def test_the_new_content_replaces_the_old_and_leaves_nothing_aside(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("old")
    write_whole(file, "new é")
    assert file.read_text(encoding="utf-8") == "new é"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_failure_keeps_the_old_content(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    file.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_place_that_cannot_be_written_is_refused_beforehand(tmp_path):
    with pytest.raises(InputError, match=r"--html: .* is a folder"):
        check_writable(tmp_path, option="--html")
    with pytest.raises(InputError, match="there is no folder"):
        check_writable(tmp_path / "none" / "page.html", option="--html")
