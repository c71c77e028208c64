"""`fulltilt video info`: figures of files made here, advice where clips would be dear, bad files named."""

from __future__ import annotations

import json
import sys

import pytest
from tests.decode.video.support import make
from typer.testing import CliRunner

from fulltilt.cli import app
from fulltilt.decode.video import Video
from fulltilt.decode.video.survey import advice, decoded_per_frame, survey
from fulltilt.errors import DecodeError, UnavailableError


def run(*arguments):
    return CliRunner().invoke(app, ["video", "info", "--seconds", "0.05", *map(str, arguments)])


def test_figures_and_advice(tmp_path):
    fine, dear = make(tmp_path / "fine", gop=8), make(tmp_path / "dear", count=120, gop=250)
    shown = run(fine, dear)
    assert shown.exit_code == 0, shown.output
    assert "every 8" in shown.output
    assert "every 120" in shown.output
    assert "dear.mp4: a key frame every 120 frames" in shown.output
    assert "fine.mp4:" not in shown.output


def test_names_stay_in_a_narrow_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = run(make(tmp_path / "a name that takes some room", count=8))
    assert shown.exit_code == 0, shown.output
    assert "a name that takes some room.mp4   h264" in shown.output


def test_damage_and_a_change_of_the_resolution_leave_figures(tmp_path, monkeypatch):
    first, second = make(tmp_path / "a", "mpeg-ts", count=20), make(tmp_path / "b", "mpeg-ts", count=20, size=(64, 48))
    changing = tmp_path / "changing.ts"
    changing.write_bytes(first.read_bytes() + second.read_bytes())
    inner = Video.frames

    def frames(video, numbers, **options):
        if video.path == first and 3 in numbers:
            raise DecodeError(f"{first}: frame 3 of 20 can't be decoded")
        return inner(video, numbers, **options)

    monkeypatch.setattr(Video, "frames", frames)
    found = run(changing, first, "--json")
    assert found.exit_code == 1
    sound, damaged = json.loads(found.output)["videos"]
    assert (sound["frames"], sound["damage"]) == (40, None)
    assert damaged["frames_per_second"] > 0
    assert "frame 3 of 20 can't be decoded" in damaged["damage"]
    assert "a.ts: frame 3 of 20 can't be decoded" in run(first).output.replace("\n", "")


def test_as_data_with_a_bad_file(tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    found = run(make(tmp_path / "v"), bad, "--json")
    assert found.exit_code == 1
    data = json.loads(found.output)
    assert [video["frames"] for video in data["videos"]] == [40]
    assert "can't be opened as a video" in data["problems"][str(bad)]
    assert isinstance(run(bad).exception, DecodeError), "alone it is wrong input, for which the status is 2"


def test_without_a_decoder_no_file_is_at_fault(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    assert isinstance(run(tmp_path / "a.mp4", tmp_path / "b.mp4").exception, UnavailableError)


def test_the_model_of_random_clips(tmp_path):
    assert decoded_per_frame(32) == 2
    assert advice(24, seekable=True) is None
    assert "-g 16" in advice(250, seekable=True)
    assert "container" in advice(1, seekable=False)
    found = survey(make(tmp_path / "v", count=200, gop=200), seconds=0.05)
    assert min(found.frames_per_second, found.clip_frames_per_second) > 0
    assert found.duration_seconds == pytest.approx(8.0)
