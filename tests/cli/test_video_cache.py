"""`fulltilt video cache` and what `fulltilt video info` says of the GPU."""

from __future__ import annotations

import json
import sys

from tests.decode.video.support import make
from typer.testing import CliRunner

from fulltilt.cache import Cache
from fulltilt.cli.video import video


def test_frames_into_a_cache(tmp_path):
    (tmp_path / "videos").mkdir()
    for number in range(2):
        make(tmp_path / "videos" / f"v{number}", count=10)
    (tmp_path / "videos" / "bad.mp4").write_bytes(b"no video" * 100)
    command = ["cache", str(tmp_path / "videos"), str(tmp_path / "cache"), "--size", "32"]
    result = CliRunner().invoke(video, command)
    assert result.exit_code == 2, "one is left out"
    assert "20 frames decoded" in result.output
    assert "bad.mp4: can't be opened as a video" in result.output
    assert len(Cache.open(tmp_path / "cache")) == 2
    (tmp_path / "videos" / "bad.mp4").unlink()
    again = CliRunner().invoke(video, [*command, "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["present"] == 2


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
