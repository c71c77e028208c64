"""RGB straight into place is what swscale gives through PyAV, and nothing beside it is touched."""

from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter
from tests.decode.video.support import make

from fulltilt.decode.video import open_video, straight
from fulltilt.decode.video.straight import Straight

GUARD = 64


def picture(height, width, *, pixels="yuv420p", matrix=2, full=False):
    planes = np.random.default_rng(height + width).integers(0, 256, (height * 3 // 2, width), dtype=np.uint8)
    found = av.VideoFrame.from_ndarray(planes, pixels)
    found.colorspace = matrix
    found.color_range = 2 if full else 1
    return found


def by_pyav(its):
    return VideoReformatter().reformat(its, format="rgb24", interpolation="BILINEAR", threads=1).to_ndarray()


@pytest.mark.parametrize("pixels", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("matrix", [1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("full", [False, True])
def test_colours(pixels, matrix, full):
    its = picture(34, 64, pixels=pixels, matrix=matrix, full=full)
    out = np.zeros((34, 64, 3), np.uint8)
    assert Straight()(its, out)
    assert np.array_equal(out, by_pyav(its))


@pytest.mark.parametrize("size", [(2, 32), (66, 96), (144, 256), (360, 640), (720, 1280)])
@pytest.mark.parametrize("shift", [0, 1, 16])
def test_sizes_and_what_lies_beside(size, shift):
    its, count = picture(*size), 3 * size[0] * size[1]
    memory = np.full(count + 2 * GUARD, 7, np.uint8)
    begin = GUARD + shift - 16
    out = memory[begin : begin + count].reshape(*size, 3)
    assert Straight()(its, out)
    assert np.array_equal(out, by_pyav(its))
    assert (memory[:begin] == 7).all()
    assert (memory[begin + count :] == 7).all()


def test_one_after_another_of_several_kinds():
    convert = Straight()
    for height, matrix in [(64, 1), (64, 1), (32, 1), (32, 7), (64, 1)]:
        its, out = picture(height, 64, matrix=matrix), np.zeros((height, 64, 3), np.uint8)
        assert convert(its, out)
        assert np.array_equal(out, by_pyav(its))
        if height == 32:
            convert.forget()


@pytest.mark.parametrize(
    ("its", "shape"),
    [
        (picture(64, 64), (32, 32, 3)),
        (picture(64, 48), (64, 48, 3)),
        (picture(64, 64, matrix=8), (64, 64, 3)),
        (picture(64, 64).reformat(format="yuv444p"), (64, 64, 3)),
        (picture(64, 64).reformat(format="yuv420p10le"), (64, 64, 3)),
    ],
    ids=["scaled", "an odd width", "YCgCo", "4:4:4", "10 bits"],
)
def test_what_is_left_to_others(its, shape):
    out = np.full(shape, 7, np.uint8)
    assert not Straight()(its, out)
    assert (out == 7).all()


def test_frames_are_the_same_without_it(tmp_path, monkeypatch):
    path = make(tmp_path / "v", count=12)
    done = []
    convert = Straight.__call__
    monkeypatch.setattr(Straight, "__call__", lambda *given: done.append(convert(*given)) or done[-1])
    with open_video(path) as video:
        ours = video.frames(range(12))
    assert done == [True] * 12
    monkeypatch.setattr(straight, "_swscale", lambda: None)
    with open_video(path) as video:
        assert np.array_equal(video.frames(range(12)), ours)
    assert done[12:] == [False] * 12
