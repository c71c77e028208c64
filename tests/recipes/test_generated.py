"""Generated data sets: once, whole, whoever asks."""

from __future__ import annotations

import functools
import io
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from fulltilt.errors import FulltiltError, InputError
from fulltilt.recipes import making
from fulltilt.recipes.generated import generated


class Writer:
    def __init__(self):
        self.written = []

    def __call__(self, folder, index):
        self.written.append(index)
        (folder / f"{index}.txt").write_text(str(index))


def test_it_is_made_once_for_the_same_arguments(tmp_path):
    write = Writer()
    first = generated("dots", {"count": 5, "seed": 1}, 5, write, root=tmp_path)
    assert sorted(write.written) == list(range(5))
    assert sorted(path.name for path in first.iterdir()) == [f"{i}.txt" for i in range(5)]
    assert generated("dots", {"count": 5, "seed": 1}, 5, write, root=tmp_path) == first
    assert len(write.written) == 5
    assert generated("dots", {"count": 5, "seed": 2}, 5, write, root=tmp_path) != first
    assert len(write.written) == 10


def test_an_error_leaves_nothing_that_looks_whole(tmp_path):
    def fails(folder, index):
        if index == 3:
            raise ValueError("a bad one")
        (folder / f"{index}.txt").write_text("")

    with pytest.raises(ValueError, match="a bad one"):
        generated("dots", {"seed": 1}, 5, fails, root=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_ctrl_c_ends_it_also_while_work_is_handed_out(tmp_path, monkeypatch):
    class Interrupted(ThreadPoolExecutor):
        given = 0

        def submit(self, *args):
            self.given += 1
            if self.given == 40:
                raise KeyboardInterrupt
            return super().submit(*args)

    def write(folder, index):
        time.sleep(0.05)
        written.append(index)

    written: list[int] = []
    monkeypatch.setattr("fulltilt.recipes.generated.ThreadPoolExecutor", Interrupted)
    monkeypatch.setattr("fulltilt.recipes.generated.read_cores", lambda: SimpleNamespace(usable=2))
    with pytest.raises(KeyboardInterrupt):
        generated("dots", {"seed": 1}, 50, write, root=tmp_path)
    assert len(written) < 30
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_place_that_can_not_be_written_to_says_what_to_give(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FulltiltError, match=r"can't be made .*; run it in another folder, or .*data\.args\.root="):
        generated("things", {}, 1, lambda folder, index: None, root=tmp_path / "file")


def test_what_a_killed_process_left_is_not_taken_for_it(tmp_path):
    aside = tmp_path / ".dots-seed=1.aside"
    aside.mkdir()
    (aside / "half.txt").write_text("")
    found = generated("dots", {"seed": 1}, 2, Writer(), root=tmp_path)
    assert sorted(path.name for path in found.iterdir()) == ["0.txt", "1.txt"]


def test_several_that_ask_at_once_have_it_made_once(tmp_path):
    written, found = [], []

    def write(folder, index):
        time.sleep(0.02)
        written.append(index)

    threads = [
        threading.Thread(target=lambda: found.append(generated("dots", {"seed": 1}, 8, write, root=tmp_path)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    assert sorted(written) == list(range(8))


def test_a_terminal_sees_a_bar(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    generated("dots", {"seed": 1}, 4, Writer(), root=tmp_path)
    assert "dots-seed=1" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


def test_a_data_set_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="count is 0"):
        generated("dots", {}, 0, Writer(), root=tmp_path)


@pytest.mark.parametrize(
    ("count", "sample_seconds", "cores", "processes"),
    [
        (4000, 0.026, 16, 16),
        (64, 3.5, 16, 16),
        (6, 4.0, 16, 6),
        (320, 0.0002, 16, 0),
        (4000, 0.026, 2, 0),
        (4000, 0.0, 16, 0),
    ],
)
def test_who_makes_it(count, sample_seconds, cores, processes):
    assert making.processes_for(count, sample_seconds=sample_seconds, cores=cores) == processes


def test_processes_make_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fulltilt.recipes.generated.processes_for", lambda *_, **__: 2)
    source = tmp_path / "source"
    source.write_text("a sample")
    copy = functools.partial(_to_number, str(source))
    found = generated("dots", {"seed": 1}, 5, copy, sample_seconds=9.0, root=tmp_path / "data")
    assert sorted(path.name for path in found.iterdir()) == [f"{i}.txt" for i in range(5)]
    assert {path.read_text() for path in found.iterdir()} == {"a sample"}


def test_a_process_that_fails_is_heard(tmp_path, monkeypatch):
    monkeypatch.setattr("fulltilt.recipes.generated.processes_for", lambda *_, **__: 2)
    with pytest.raises(FulltiltError, match="can't be made: FileNotFoundError"):
        generated("dots", {"seed": 1}, 4, functools.partial(_to_number, "nowhere"), sample_seconds=9.0, root=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def _to_number(source, folder, index):
    shutil.copyfile(source, folder / f"{index}.txt")
