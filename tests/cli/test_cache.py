"""`fulltilt cache` as a command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fulltilt.cli.cache_view import progress_line

COMMAND = [sys.executable, "-m", "fulltilt", "cache"]


def run(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def source(tmp_path):
    """Twelve images in two classes, masks of the same names."""
    random = np.random.default_rng(0)
    for number in range(12):
        for folder, mode in ((f"images/{'ab'[number % 2]}", "RGB"), ("masks", "L")):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            shape = (40, 60, 3) if mode == "RGB" else (40, 60)
            Image.fromarray(random.integers(0, 20, shape, np.uint8)).save(tmp_path / folder / f"{number}.png")
    return tmp_path / "images"


def test_build_info_verify_clear(source, tmp_path):
    cache = tmp_path / "cache"
    built = run("build", source, cache, "--masks", tmp_path / "masks", "--size", 32)
    assert "12 to add: about 7" in built.stderr
    assert "12 decoded" in built.stderr
    assert "nothing to add" in run("build", source, cache, "--masks", tmp_path / "masks", "--size", 32).stderr

    table = run("info", cache, "--source", source, "--masks", tmp_path / "masks").stdout
    assert "12, 12 with a mask" in table
    assert "shorter side 32" in table
    assert "100.0% (12 of 12)" in table
    found = json.loads(run("info", cache, "--source", source, "--json").stdout)
    assert found["entries"] == 12
    assert found["settings"]["size"] == 32
    assert found["source"] == {"samples": 12, "hits": 0, "rate": 0.0}  # without the masks they are other samples

    assert "12 entries, all sound; sources: 12 same" in run("verify", cache).stderr
    assert "pass --yes" in run("clear", cache, status=2).stderr
    (cache / "notes.txt").write_text("mine")
    assert "removed" in run("clear", cache, "--yes").stderr
    assert [path.name for path in cache.iterdir()] == ["notes.txt"]
    assert "holds no cache" in run("info", cache, status=2).stderr


def test_clear_takes_the_folder_when_nothing_else_is_in_it(source, tmp_path):
    run("build", source, tmp_path / "cache")
    run("clear", tmp_path / "cache", "-y")
    assert not (tmp_path / "cache").exists()


def test_clear_removes_nothing_without_a_manifest(source, tmp_path):
    (tmp_path / "shard-00000.pixels").write_text("looks like one")
    assert "holds no cache" in run("clear", tmp_path, "--yes", status=2).stderr
    assert (tmp_path / "shard-00000.pixels").exists()


def test_unreadable_images_are_listed(source, tmp_path):
    (source / "a" / "0.png").write_text("text")
    (source / "b" / "zero.jpg").touch()
    done = run("build", source, tmp_path / "cache", "--json", status=1)
    assert "2 left out:" in done.stderr
    assert f"{source}/a/0.png: not an image" in done.stderr
    report = json.loads(done.stdout)
    assert report["made"] == 11
    assert [Path(failure["path"]).name for failure in report["failures"]] == ["0.png", "zero.jpg"]


def test_damage_ends_with_one_and_is_named(source, tmp_path):
    cache = tmp_path / "cache"
    run("build", source, cache, "--workers", 1)
    with (cache / "shard-00000.pixels").open("r+b") as file:
        file.seek(64 + 5)
        file.write(b"\xff")
    done = run("verify", cache, status=1)
    assert "12 entries, 1 damaged" in done.stderr
    assert f"{source}/a/0.png: its pixels are damaged (shard 0, byte 64)" in done.stderr
    assert "dropped" in run("verify", cache, "--drop", status=1).stderr
    report = json.loads(run("verify", cache, "--no-sources", "--json").stdout)
    assert (report["entries"], report["damage"]) == (11, [])
    assert "1 decoded" in run("build", source, cache).stderr
    assert "all sound" in run("verify", cache).stderr


def test_budget_and_dry_run_write_nothing(source, tmp_path):
    assert "Raise --budget" in run("build", source, tmp_path / "cache", "--budget", "50k", status=2).stderr
    assert "expected a size like" in run("build", source, tmp_path / "cache", "--budget", "much", status=2).stderr
    done = run("build", source, tmp_path / "cache", "--dry-run", "--json", "--budget", "1.5M")
    assert json.loads(done.stdout)["samples"] == 12
    assert not (tmp_path / "cache").exists()


def test_other_settings_are_refused(source, tmp_path):
    run("build", source, tmp_path / "cache")
    done = run("build", source, tmp_path / "cache", "--quality", "fast", status=2)
    assert "was built with quality exact instead of fast" in done.stderr


def test_a_folder_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").touch()
    assert "can't write into" in run("build", source, tmp_path / "file" / "cache", status=2).stderr


def test_ctrl_c_keeps_what_was_made(tmp_path):
    source = tmp_path / "images"
    source.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    for number in range(200):
        pixels[0, 0] = number
        Image.fromarray(pixels).save(source / f"{number}.png", compress_level=1)
    process = subprocess.Popen(
        [*COMMAND, "build", source, tmp_path / "cache", "--workers", "2"], stderr=subprocess.PIPE, text=True
    )
    while not list(tmp_path.glob("cache/*.pixels")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "what was made is kept" in said
    kept = json.loads(run("info", tmp_path / "cache", "--json").stdout)["entries"]
    assert 0 < kept < 200
    assert f"{kept} samples are there, {200 - kept} to add" in run("build", source, tmp_path / "cache").stderr


def test_a_terminal_gets_a_bar(source, tmp_path):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "build", str(source), str(tmp_path / "cache")], stderr=follower, stdin=follower, close_fds=True
    )
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 4096):
            shown += data
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(leader)
    assert process.wait() == 0
    assert "━".encode() in shown
    assert b"12 decoded" in shown


def test_progress_in_words():
    assert progress_line(1200, 5000, 680_000_000, 1.5) == "1,200 of 5,000 (24%), 680 MB, 800 a second, 5 s left"
    assert progress_line(0, 5000, 0, 0) == "0 of 5,000 (0%)"
