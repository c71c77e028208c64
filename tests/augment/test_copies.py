"""Flips, quarter turns and whole-pixel crops move pixels and change none."""

from __future__ import annotations

import math

import pytest
import torch
from tests.augment.support import labels, photo, plain, u

from fulltilt.augment.layout import Uniform

IMAGES = photo(6, 13, 13, 3)
MASKS = labels(6, 13, 13)
BYTES = {"dtype": torch.uint8}


def planes(images):
    return images.movedim(-1, -3)


def turned(image, index):
    """Clockwise on the screen by one, two or three quarters."""
    return torch.rot90(image, -(math.floor(u(Uniform.TURNS, index) * 3) + 1), (-2, -1))


def each(change, images):
    return torch.stack([change(image, k) for k, image in enumerate(images)])


COPIES = {
    "nothing": ({}, lambda x, k: x),
    "horizontal": ({"horizontal_flip_prob": 1.0}, lambda x, k: x.flip(-1)),
    "vertical": ({"vertical_flip_prob": 1.0}, lambda x, k: x.flip(-2)),
    "both": ({"horizontal_flip_prob": 1.0, "vertical_flip_prob": 1.0}, lambda x, k: x.flip(-2, -1)),
    "turn": ({"quarter_turn_prob": 1.0}, turned),
    "flip, then turn": (
        {"horizontal_flip_prob": 1.0, "quarter_turn_prob": 1.0},
        lambda x, k: turned(x.flip(-1), k),
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_bytes_stay_the_bytes_they_were(path, name):
    options, change = COPIES[name]
    out, masks = path(plain(**options, **BYTES), IMAGES, MASKS)
    assert out.dtype == torch.uint8
    assert torch.equal(out, each(change, planes(IMAGES)))
    assert torch.equal(masks, each(change, MASKS))


def test_the_turns_that_are_tested_are_all_three():
    assert {math.floor(u(Uniform.TURNS, k) * 3) for k in range(len(IMAGES))} == {0, 1, 2}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_floats_stay_the_bits_they_were(path, dtype):
    images = torch.rand(2, 3, 9, 14, generator=torch.Generator().manual_seed(3)).to(dtype)
    out = path(plain(horizontal_flip_prob=1.0, vertical_flip_prob=1.0), images)
    assert out.dtype == dtype
    assert torch.equal(out, images.flip(-2, -1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_bytes_become_floats_by_255(path, dtype):
    out = path(plain(horizontal_flip_prob=1.0, dtype=dtype), IMAGES)
    exact = planes(IMAGES).flip(-1).double() / 255
    # One rounding to float32 in 1/255, one in the product, one to the output.
    assert out.dtype == dtype
    assert ((out.double() - exact).abs() <= exact * (torch.finfo(dtype).eps / 2 + 2**-23)).all()


def test_a_turn_of_an_oblong_output_is_a_half_turn(path):
    images = photo(3, 3, 7, 12)
    out = path(plain(quarter_turn_prob=1.0, **BYTES), images)
    assert torch.equal(out, images.flip(-2, -1))


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("crop", [(8, 8), (11, 5), (20, 30), (21, 34)])
def test_a_random_crop_is_a_slice(path, crop, padding):
    height, width = 20, 30
    images, masks = photo(2, height, width, 3), labels(2, height, width)
    aug = plain(random_crop=crop, crop_padding=padding, fill=1.0, mask_fill=9, **BYTES)
    out, cropped = path(aug, images, masks)
    for k in range(2):
        room_y, room_x = height + 2 * padding - crop[0], width + 2 * padding - crop[1]
        top = math.floor(u(Uniform.CROP_Y, k) * (room_y + 1)) - padding if room_y >= 0 else (height - crop[0]) // 2
        left = math.floor(u(Uniform.CROP_X, k) * (room_x + 1)) - padding if room_x >= 0 else (width - crop[1]) // 2
        wide = torch.full((3, height + 80, width + 80), 255, dtype=torch.uint8)
        wide[:, 40:-40, 40:-40] = planes(images)[k]
        wide_mask = torch.full((height + 80, width + 80), 9)
        wide_mask[40:-40, 40:-40] = masks[k]
        window = (slice(40 + top, 40 + top + crop[0]), slice(40 + left, 40 + left + crop[1]))
        assert torch.equal(out[k], wide[(slice(None), *window)])
        assert torch.equal(cropped[k], wide_mask[window])


def test_a_crop_reaches_every_place_and_no_other():
    """Nine places in a 4×4 image with a 2×2 crop: all are drawn, alike often."""
    images = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(4500, 1, 4, 4)
    first = plain(random_crop=2, **BYTES)(images)[:, 0, 0, 0]
    counts = torch.bincount(first.long(), minlength=16).view(4, 4)
    assert bool((counts[3] == 0).all())
    assert bool((counts[:, 3] == 0).all())
    expected = 4500 / 9
    chi_square = ((counts[:3, :3] - expected) ** 2 / expected).sum()
    assert chi_square < 26.1  # 8 degrees of freedom, one in a thousand


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64, torch.float32])
def test_labels_of_every_type_come_through_untouched(path, dtype):
    masks = labels(2, 9, 11, classes=2 if dtype == torch.bool else 100, dtype=dtype)
    if dtype == torch.int64:
        masks = masks + (1 << 52)
    _, out = path(plain(horizontal_flip_prob=1.0), photo(2, 9, 11, 3), masks)
    assert out.dtype == dtype
    assert torch.equal(out, masks.flip(-1))


def test_one_pixel(path):
    image, mask = photo(2, 1, 1, 3), labels(2, 1, 1)
    aug = plain(
        horizontal_flip_prob=1.0, quarter_turn_prob=1.0, rotation_degrees=(0.0, 0.0), layout="channels_last", **BYTES
    )
    out, labelled = path(aug, image, mask)
    assert torch.equal(out, planes(image))
    assert torch.equal(labelled, mask)
