"""Resizing and random resized crops, antialiased or not, against torch's and Pillow's own."""

from __future__ import annotations

import math
import random

import pytest
import torch
from PIL import Image
from tests.augment.support import labels, photo, plain, rounding, torch_path, uniform
from torch.nn import functional as F

from fulltilt.augment.layout import Uniform


def pillow(image, size, box):
    """C×H×W bytes: the box (left, top, right, bottom) at a new size, on the [0, 1] scale, in Pillow's float mode."""
    out = []
    for plane in image.float():
        height, width = plane.shape
        picture = Image.frombytes("F", (width, height), plane.contiguous().numpy().tobytes())
        picture = picture.resize(size[::-1], Image.Resampling.BILINEAR, box=box)
        out.append(torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.float32).view(*size))
    return torch.stack(out).double() / 255


@pytest.mark.parametrize(
    ("size", "to"),
    [
        ((24, 31), (12, 15)),  # by about 2
        ((24, 31), (24, 8)),  # one axis only, by about 4
        ((16, 25), (2, 3)),  # by 8
        ((9, 11), (1, 1)),
        ((30, 40), (29, 39)),  # hardly
        ((9, 7), (20, 31)),  # enlarged
        ((20, 6), (5, 30)),  # one axis down, the other up
        ((1, 1), (5, 4)),
        ((3, 2), (3, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_resizing_is_torchs(path, size, to, layout):
    images = photo(2, 3, *size)
    source = images if layout == "channels_first" else images.movedim(1, -1).contiguous()
    out = path(plain(size=to, layout=layout), source)
    expected = F.interpolate(images.double() / 255, to, mode="bilinear", antialias=True)
    assert (out.double() - expected).abs().max() < 1e-4


@pytest.mark.parametrize("to", [(12, 15), (30, 50)], ids=str)
def test_resizing_without_antialias(path, to):
    images = photo(2, 3, 24, 31)
    out = path(plain(size=to, antialias=False), images)
    expected = F.interpolate(images.double() / 255, to, mode="bilinear", align_corners=False)
    assert (out.double() - expected).abs().max() < 1e-4


@pytest.mark.parametrize("channels", [1, 4, 6])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float16], ids=str)
def test_resizing_other_channels_and_types(path, channels, dtype):
    images = photo(2, channels, 21, 17)
    out = path(plain(size=(7, 6), layout="channels_first", dtype=dtype), images)
    expected = F.interpolate(images.double() / 255, (7, 6), mode="bilinear", antialias=True)
    values = out.double() / (255 if dtype == torch.uint8 else 1)
    assert (values - expected).abs().max() < rounding(path, dtype) + 1e-4


@pytest.mark.parametrize(("size", "to"), [((24, 30), (8, 10)), ((24, 31), (13, 7)), ((9, 7), (20, 31))], ids=str)
def test_labels_are_the_nearest(path, size, to):
    masks = labels(2, *size)
    _, out = path(plain(size=to), photo(2, 3, *size), masks)
    assert torch.equal(out, F.interpolate(masks[:, None].double(), to, mode="nearest-exact")[:, 0].long())


def resized_crop_box(size, area, ratio, index):
    """torchvision's RandomResizedCrop.get_params on our generator's numbers: left, top, right, bottom."""
    height, width = size
    low, high = (math.log(r) for r in ratio)
    for attempt in range(10):
        share = uniform(Uniform.CROP + 2 * attempt, index=index)
        shape = uniform(Uniform.CROP + 2 * attempt + 1, index=index)
        target = height * width * (area[0] + (area[1] - area[0]) * share)
        aspect = math.exp(low + (high - low) * shape)
        w, h = math.floor(math.sqrt(target * aspect) + 0.5), math.floor(math.sqrt(target / aspect) + 0.5)
        if 0 < w <= width and 0 < h <= height:
            top = math.floor(uniform(Uniform.CROP_Y, index=index) * (height - h + 1))
            left = math.floor(uniform(Uniform.CROP_X, index=index) * (width - w + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < min(ratio):
        h = math.floor(width / min(ratio) + 0.5)
    elif width / height > max(ratio):
        w = math.floor(height * max(ratio) + 0.5)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def torch_rows(aug, images):
    with torch_path() as path:
        return path.rows(aug, images)


def box_of(row, to):
    """The box that a row's matrix shows, from where the output's corners lie."""
    left, top = row[2] + 0.5 - row[0] / 2, row[5] + 0.5 - row[4] / 2
    return tuple(float(v) for v in (left, top, left + row[0] * to[1], top + row[4] * to[0]))


CROPS = [
    ((30, 40), (14, 16), (0.08, 1.0), (3 / 4, 4 / 3)),
    ((25, 23), (3, 3), (0.8, 1.0), (3 / 4, 4 / 3)),  # shrinks by 7
    ((20, 24), (30, 28), (0.08, 0.3), (0.5, 2.0)),  # enlarges
    ((10, 90), (9, 9), (0.9, 1.0), (3 / 4, 4 / 3)),  # no attempt fits
    ((90, 10), (9, 9), (0.9, 1.0), (3 / 4, 4 / 3)),
]


@pytest.mark.parametrize(("size", "to", "area", "ratio"), CROPS, ids=str)
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_a_random_resized_crop_is_pillows(path, size, to, area, ratio, layout):
    images, masks = photo(2, 3, *size), labels(2, *size)
    source = images if layout == "channels_first" else images.movedim(1, -1).contiguous()
    aug = plain(size=to, random_resized_crop=area, crop_ratio=ratio, layout=layout)
    rows = torch_rows(aug, source)
    out, out_masks = path(aug, source, masks)
    for k in range(2):
        left, top, right, bottom = resized_crop_box(size, area, ratio, k)
        assert box_of(rows[k].double(), to) == pytest.approx((left, top, right, bottom), abs=1e-4)
        expected = pillow(images[k], to, (left, top, right, bottom))
        assert (out[k].double() - expected).abs().max() < 1e-4
        inside = masks[k, top:bottom, left:right]
        nearest = F.interpolate(inside[None, None].double(), to, mode="nearest-exact")[0, 0].long()
        assert (out_masks[k] == nearest).double().mean() > 0.99  # halves aside: all


def test_images_of_different_sizes(path):
    sizes = [(48, 64), (20, 33), (40, 10), (16, 16), (5, 4)]
    images, masks = [photo(*size, 3, seed=k) for k, size in enumerate(sizes)], [labels(*size) for size in sizes]
    out, out_masks = path(plain(size=(12, 14), random_resized_crop=True), images, masks)
    assert out.shape == (5, 3, 12, 14)
    assert out_masks.shape == (5, 12, 14)
    for k, size in enumerate(sizes):
        box = resized_crop_box(size, (0.08, 1.0), (3 / 4, 4 / 3), k)
        assert (out[k].double() - pillow(images[k].movedim(-1, 0), (12, 14), box)).abs().max() < 1e-4
        found = masks[k][box[1] : box[3], box[0] : box[2]]
        nearest = F.interpolate(found[None, None].double(), (12, 14), mode="nearest-exact")[0, 0].long()
        assert (out_masks[k] == nearest).double().mean() > 0.99


@pytest.mark.parametrize("share", [1.0, 0.875])
def test_eval_mode_shows_the_middle(path, share):
    images = photo(2, 3, 40, 60)
    aug = plain(size=(16, 16), random_resized_crop=True, eval_crop=share).eval()
    side = 40 * share
    left, top = math.floor((60 - side) / 2), math.floor((40 - side) / 2)
    out = path(aug, images)
    for k in range(2):
        expected = pillow(images[k], (16, 16), (left, top, left + side, top + side))
        assert (out[k].double() - expected).abs().max() < 1e-4


def test_the_scale_option_antialiases_too(path):
    """A picture shrunk to a quarter about its centre, away from the border."""
    images = photo(1, 3, 32, 32)
    out = path(plain(scale=(0.25, 0.25)), images)[0]
    expected = F.interpolate(images.double() / 255, (8, 8), mode="bilinear", antialias=True)[0]
    assert (out[:, 13:19, 13:19].double() - expected[:, 1:7, 1:7]).abs().max() < 1e-4
    assert bool((out[:, :11] == 0).all())


def test_crops_are_spread_as_torchvisions():
    """Area and shape of 4,000 boxes against as many from torchvision's own procedure with Python's generator."""
    size, to, count = (375, 500), (4, 4), 4000
    rng = random.Random(0)

    def torchvision_box():
        height, width = size
        for _ in range(10):
            target = height * width * rng.uniform(0.08, 1.0)
            aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                return rng.randint(0, width - w), rng.randint(0, height - h), w, h
        return 0, 0, width, height

    theirs = torch.tensor([torchvision_box() for _ in range(count)], dtype=torch.float64)
    from fulltilt.augment.draws import Frame, draw_rows

    aug = plain(size=to, random_resized_crop=True)
    rows = draw_rows(
        ops=aug.settings.ops,
        values=torch.tensor(aug.settings.vector()),
        seed=7,
        epoch=3,
        index=torch.arange(count),
        frame=Frame(sizes=torch.tensor([size]).expand(count, 2), out_h=to[0], out_w=to[1]),
    ).double()
    left, top = rows[:, 2] + 0.5 - rows[:, 0] / 2, rows[:, 5] + 0.5 - rows[:, 4] / 2
    ours = torch.stack([left, top, rows[:, 0] * to[1], rows[:, 4] * to[0]], 1)
    for measure in (
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 2] / b[:, 3],
        lambda b: b[:, 0] / (size[1] - b[:, 2] + 1),
        lambda b: b[:, 1] / (size[0] - b[:, 3] + 1),
    ):
        assert two_sample_distance(measure(ours), measure(theirs)) < 1.95 * math.sqrt(2 / count)  # one in a thousand


def two_sample_distance(a, b):
    """Kolmogorov and Smirnov's: the largest gap between two distribution functions."""
    points = torch.cat([a, b]).sort().values
    first, second = (torch.searchsorted(x.sort().values, points, right=True) / len(x) for x in (a, b))
    return float((first - second).abs().max())
