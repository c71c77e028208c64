"""Colours and sizes as the GPU's path makes them, against the CPU's (swscale), here on the CPU."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import VideoReformatter
from tests.decode.video.support import picture

from fulltilt.decode.video.colour import rgb_of


def smooth(width, height):
    """Nothing sharper than 40 pixels, and all colours."""
    small = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, height // 40, width // 40)) * 1.0)
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
    return large[0].permute(1, 2, 0).clamp(0, 255).to(torch.uint8).contiguous().numpy()


def both(pixels, size, *, matrix=2, color_range=1):
    """By swscale, and by us from the same samples."""
    frame = av.VideoFrame.from_ndarray(pixels, "rgb24").reformat(format="yuv420p")
    frame.colorspace, frame.color_range = matrix, color_range
    height, width = pixels.shape[:2]
    kwargs = {"width": size[1], "height": size[0], "format": "rgb24", "interpolation": "BILINEAR"}
    theirs = VideoReformatter().reformat(frame, **kwargs).to_ndarray().astype(int)
    planes = [
        torch.from_numpy(np.frombuffer(bytes(plane), np.uint8).reshape(plane.height, -1)[:, : plane.width].copy())
        for plane in frame.planes
    ]
    luma, chroma = planes[0][None], torch.stack(planes[1:], -1)[None]
    assert luma.shape == (1, height, width)
    ours = torch.empty((1, *size, 3), dtype=torch.uint8)
    rgb_of(luma, chroma, ours, matrix=matrix, full_range=color_range == 2)
    return np.abs(ours[0].numpy().astype(int) - theirs)


@pytest.mark.parametrize("color_range", [0, 1, 2], ids=["unsaid", "limited", "full"])
@pytest.mark.parametrize("matrix", [1, 2, 5, 6, 7, 9])
def test_every_matrix_and_range(matrix, color_range):
    apart = both(picture(5, 256, 192), (192, 256), matrix=matrix, color_range=color_range)
    assert apart.max() <= 3
    assert apart.mean() < 0.8


@pytest.mark.parametrize("size", [(96, 128), (112, 150), (224, 224), (301, 401), (720, 1280)])
def test_every_size(size):
    apart = both(smooth(640, 480), size)
    assert apart.mean() <= 2.1
    assert np.percentile(apart, 99.9) <= 6
