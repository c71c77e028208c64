"""`fulltilt video cache` and what `fulltilt video info` says of the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.decode.video.support import make
from typer.testing import CliRunner

from fulltilt.cache import Cache
from fulltilt.cache.manifest import locked
from fulltilt.cli.video import video


def test_frames_into_a_cache(tmp_path):
    (tmp_path / "videos").mkdir()
    for number in range(2):
        make(tmp_path / "videos" / f"v{number}", count=10)
    (tmp_path / "videos" / "bad.mp4").write_bytes(b"no video" * 100)
    command = ["cache", str(tmp_path / "videos"), str(tmp_path / "cache"), "--size", "32"]
    result = CliRunner().invoke(video, [*command, "--json"])
    assert result.exit_code == 1, "one is left out"
    assert "3 to add: about 9" in result.stderr
    assert "20 frames decoded" in result.stderr
    bad = str(tmp_path / "videos" / "bad.mp4")
    assert f"1 left out:\n  {bad}: can't be opened as a video" in result.stderr
    (failure,) = json.loads(result.stdout)["failures"]
    assert failure["path"] == bad
    assert failure["error"].startswith("can't be opened as a video")
    assert len(Cache.open(tmp_path / "cache")) == 2
    os.unlink(bad)
    again = CliRunner().invoke(video, command)
    assert again.exit_code == 0, again.output
    assert "2 videos are there, nothing to add" in again.stderr
    assert "0 frames decoded (0 bytes), 2 videos there before" in again.stderr
    assert not again.stdout


def test_ctrl_c_is_told_as_for_images(tmp_path, monkeypatch):
    make(tmp_path / "v", count=10)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fulltilt.cache.video._in_threads", stopped)
    result = CliRunner().invoke(video, ["cache", str(tmp_path), str(tmp_path / "cache"), "--size", "32"])
    assert result.exit_code == 130
    assert "what was made is kept" in result.stderr


def test_another_build_is_told_on_the_screen(tmp_path):
    (tmp_path / "videos").mkdir()
    make(tmp_path / "videos" / "v", count=10)
    (tmp_path / "cache").mkdir()
    with locked(tmp_path / "cache", waiting=None):
        command = [sys.executable, "-m", "fulltilt", "video", "cache", tmp_path / "videos", tmp_path / "cache"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            said = process.stderr.readline()
            process.kill()
    assert f"another build (process {os.getpid()}) is at work" in said


def test_a_table_of_segments(tmp_path):
    """Labels don't matter here: also where some videos have none, for nothing happens in them."""
    for number in range(2):
        make(tmp_path / f"v{number}", count=10)
    (tmp_path / "s.csv").write_text("path,label,start,end\nv0.mp4,1,0,0.1\nv0.mp4,2,0.1,0.2\nv1.mp4,,,\n")
    result = CliRunner().invoke(video, ["cache", str(tmp_path / "s.csv"), str(tmp_path / "cache"), "--size", "32"])
    assert result.exit_code == 0, result.output
    assert "20 frames decoded" in result.output


def test_info_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fulltilt.cli.video"], "_torch_sees_it", lambda: False)
    result = CliRunner().invoke(video, ["info", str(make(tmp_path / "v")), "--seconds", "0.05", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["videos"]
    assert found["nvdec_frames_per_second"] is None
    assert found["frames_per_second"] > 0
