"""Generated videos: what their segments say is what is to be seen in them, the same on both sides."""

from __future__ import annotations

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch

from fulltilt.cache.build import Failure
from fulltilt.cache.video import VideoReport
from fulltilt.decode.video import open_video
from fulltilt.errors import FulltiltError, InputError
from fulltilt.recipes.video import data
from fulltilt.recipes.video.data import ClipDataset, clips, make_videos
from fulltilt.recipes.video.drawing import ACTIONS, LEAST_FRAMES, MOST_FRAMES, pictures, script

SIZE = {"frames": 96, "height": 48, "width": 64}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("data"))
    make_videos(6, **SIZE, seed=2, root=root)
    return {"count": 6, **SIZE, "seed": 2, "root": root, "size": 32}


def test_scripts_have_actions_of_fair_lengths_with_gaps_between():
    kinds = set()
    for number in range(40):
        actions = script(200, 0, number)
        kinds |= {action.kind for action in actions}
        assert actions
        assert all(LEAST_FRAMES <= action.end - action.start <= MOST_FRAMES for action in actions)
        assert all(one.end < two.start for one, two in pairwise(actions))
        assert actions[0].start > 0
        assert actions[-1].end < 200
    assert kinds == set(ACTIONS)
    assert all(script(LEAST_FRAMES + 2, 0, number) for number in range(20)), "even the shortest video has one"
    assert script(200, 0, 1) != script(200, 1, 1)


def test_the_disc_moves_as_the_script_says():
    """Its centre and its area, taken from the pixels."""
    checked = set()
    for number in range(8):
        shown = np.stack(list(pictures(160, 48, 48, 5, number))).astype(float).mean(-1)
        bright = np.clip(shown - 120, 0, None)
        area = (bright > 20).sum((1, 2))
        weight = bright.sum((1, 2)).clip(1)
        centre = np.stack([(bright.sum(2) * np.arange(48)).sum(1), (bright.sum(1) * np.arange(48)).sum(1)]) / weight
        for action in script(160, 5, number):
            part = slice(action.start, action.end)
            rows, columns = (np.ptp(line[part]) for line in centre)
            expected = {
                "sweep": columns > 8 and rows < 3,
                "bounce": rows > 8 and columns < 3,
                "pulse": rows < 3 and columns < 3 and area[part].max() > 2.5 * area[part].min() > 0,
                "blink": area[part].min() == 0 < area[part].max(),
            }
            assert expected[action.kind], (number, action, rows, columns)
            checked.add(action.kind)
    assert checked == set(ACTIONS)


def test_files_hold_the_pictures_and_are_made_once(made):
    folder = make_videos(6, **SIZE, seed=2, root=made["root"])
    before = (folder / "00003.mp4").stat().st_mtime_ns
    with open_video(folder / "00003.mp4") as video:
        assert (len(video), video.height, video.width) == (96, 48, 64)
        shown = video.frames(list(range(96)))
    drawn = np.stack(list(pictures(96, 48, 64, 2, 3)))
    assert np.abs(shown.astype(int) - drawn).mean() < 6
    assert make_videos(6, **SIZE, seed=2, root=made["root"]) == folder
    assert (folder / "00003.mp4").stat().st_mtime_ns == before


def test_both_sides_take_the_same_arguments():
    """Each lists them, so that a configuration's can be checked before anything is made."""
    fed, plain = (
        {name: one.default for name, one in inspect.signature(make).parameters.items()} for make in (clips, ClipDataset)
    )
    assert fed.keys() - plain.keys() == {"together", "quality", "cache"}
    assert {name: fed[name] for name in plain if name != "threads"} == {
        name: default for name, default in plain.items() if name != "threads"
    }


def test_both_sides_give_the_same_clips(made):
    options = made | {"length": 40, "clips": 2, "jitter": False}
    fed, plain = clips(**options), ClipDataset(**options, threads=1)
    assert len(fed) == len(plain) == 12
    for number in range(12):
        (pixels, labels), (expected, known) = fed[0, number], plain[number]
        assert pixels.shape == expected.shape == (40, 32, 32, 3)
        assert torch.equal(labels, known)
        assert (pixels.float() - expected.float()).abs().mean() < 4, "scaled by another library"


def test_a_cache_is_filled_once_and_gives_the_same_clips(made, tmp_path, caplog):
    options = made | {"length": 40, "clips": 2}
    caplog.set_level("INFO", "fulltilt.recipes")
    plain, kept = clips(**options), clips(**options, cache=str(tmp_path / "frames"))
    assert "576 frames decoded" in caplog.text  # six videos of 96
    assert kept.has_cache
    for number in range(12):
        (pixels, labels), (expected, known) = kept[3, number], plain[3, number]
        assert torch.equal(pixels, expected)
        assert torch.equal(labels, known)
    caplog.clear()
    clips(**options, cache=str(tmp_path / "frames"))
    assert "decoded" not in caplog.text
    clips(**options | {"count": 2, "seed": 5}, cache=str(tmp_path / "frames"))
    assert "192 frames decoded" in caplog.text, "videos to validate with go into the same folder"


FAILURE = Failure(path="a.mp4", error="it ends early")


def test_a_video_that_can_not_be_kept_is_named(made, tmp_path, monkeypatch):
    report = VideoReport(videos=1, present=0, frames=0, bytes=0, failures=(FAILURE,), seconds=0.0)
    monkeypatch.setattr(data, "build_videos", lambda *_, **__: report)
    with pytest.raises(FulltiltError, match=r"a\.mp4: it ends early"):
        clips(**made, cache=str(tmp_path))


def test_whole_videos_have_the_labels_of_their_scripts(made):
    whole = clips(**made | {"length": 96, "jitter": False})
    for number in range(6):
        labels = whole[0, number][1].tolist()
        expected = [0] * 96
        for action in script(96, 2, number):
            expected[action.start : action.end] = [ACTIONS.index(action.kind) + 1] * (action.end - action.start)
        assert labels == expected


def test_jitter_draws_another_part(made):
    torch.manual_seed(0)
    plain = ClipDataset(**made | {"length": 20}, threads=1)
    assert len({plain[0][0].numpy().tobytes() for _ in range(6)}) > 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"frames": 10}, "at least 18"),
        ({"height": 33}, "even numbers"),
        ({"count": 0}, "at least 1"),
        ({"length": 97}, "1 clips of 97 frames don't fit"),
    ],
)
def test_what_is_wrong_is_named(made, changes, says):
    with pytest.raises(InputError, match=says):
        ClipDataset(**made | {"length": 8} | changes)
