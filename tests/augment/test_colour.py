"""Each colour operation alone against Kornia's with the same parameter, and the order in which they combine."""

from __future__ import annotations

import math

import kornia.color
import kornia.enhance
import pytest
import torch
from tests.augment.support import dots, photo, plain, rounding

from fulltilt.augment.layout import Column

IMAGES = photo(2, 3, 12, 17)
VALUES = IMAGES.double() / 255


def multiplied(image, factor):
    """Kornia calls it contrast; everybody else brightness."""
    return kornia.enhance.adjust_contrast(image, factor)


def grayed(image):
    return kornia.color.rgb_to_grayscale(image).expand_as(image)


CASES = {
    "brighter": ({"brightness": (1.4, 1.4)}, lambda x: multiplied(x, 1.4)),
    "darker": ({"brightness": (0.3, 0.3)}, lambda x: multiplied(x, 0.3)),
    "black": ({"brightness": (0.0, 0.0)}, torch.zeros_like),
    "contrast about the middle": ({"contrast": (1.5, 1.5)}, lambda x: (0.5 + 1.5 * (x - 0.5)).clamp(0, 1)),
    "contrast about 0.2": (
        {"contrast": (0.6, 0.6), "contrast_pivot": 0.2},
        lambda x: (0.2 + 0.6 * (x - 0.2)).clamp(0, 1),
    ),
    "contrast about the mean": (
        {"contrast": (1.7, 1.7), "contrast_pivot": "mean"},
        lambda x: kornia.enhance.adjust_contrast_with_mean_subtraction(x, 1.7),
    ),
    "less contrast about the mean": (
        {"contrast": (0.3, 0.3), "contrast_pivot": "mean"},
        lambda x: kornia.enhance.adjust_contrast_with_mean_subtraction(x, 0.3),
    ),
    "saturated": (
        {"saturation": (1.8, 1.8)},
        lambda x: kornia.enhance.adjust_saturation_with_gray_subtraction(x, 1.8),
    ),
    "pale": ({"saturation": (0.4, 0.4)}, lambda x: kornia.enhance.adjust_saturation_with_gray_subtraction(x, 0.4)),
    "gray": ({"gray_prob": 1.0}, grayed),
    "hue": ({"hue": (0.2, 0.2)}, lambda x: kornia.enhance.adjust_hue(x, 0.2 * 2 * math.pi)),
    "hue backwards": ({"hue": (-0.45, -0.45)}, lambda x: kornia.enhance.adjust_hue(x, -0.45 * 2 * math.pi)),
    "no hue": ({"hue": (0.0, 0.0)}, lambda x: x),
    "gamma": ({"gamma": (1.8, 1.8)}, lambda x: kornia.enhance.adjust_gamma(x, 1.8)),
    "gamma below 1": ({"gamma": (0.4, 0.4)}, lambda x: kornia.enhance.adjust_gamma(x, 0.4)),
    "inverted": ({"invert_prob": 1.0}, kornia.enhance.invert),
    "solarised": (
        {"solarize_prob": 1.0, "solarize_threshold": 0.3},
        lambda x: kornia.enhance.solarize(x, 0.3),
    ),
    # Kornia cuts x · 255 off; half a level more makes that the level itself.
    "posterised": (
        {"posterize_prob": 1.0, "posterize_bits": 3},
        lambda x: kornia.enhance.posterize(x + 0.25 / 255, 3),
    ),
    "posterised to one bit": (
        {"posterize_prob": 1.0, "posterize_bits": 1},
        lambda x: (x * 255).round().int().bitwise_and(0x80) / 255,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_operation(path, name):
    options, expected = CASES[name]
    out = path(plain(**options), IMAGES)
    assert (out.double() - expected(VALUES)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["brighter", "hue"])
def test_outputs_are_rounded_once(path, name, dtype):
    options, expected = CASES[name]
    out = path(plain(**options, dtype=dtype), IMAGES).double() / (255 if dtype == torch.uint8 else 1)
    assert (out - expected(VALUES)).abs().max() < rounding(path, dtype) + 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_float_inputs(path, dtype):
    images = VALUES.to(dtype)
    out = path(plain(brightness=(0.7, 0.7), saturation=(1.5, 1.5), dtype=torch.float32), images)
    expected = kornia.enhance.adjust_saturation_with_gray_subtraction(0.7 * images.double(), 1.5)
    assert (out.double() - expected).abs().max() < 1e-5


def test_together_in_the_order_that_is_documented(path):
    """Brightness, contrast, saturation, inversion as one matrix, cut once; then hue, gamma, solarise, posterise."""
    options = {
        "brightness": (1.2, 1.2),
        "contrast": (0.8, 0.8),
        "contrast_pivot": 0.3,
        "saturation": (1.4, 1.4),
        "invert_prob": 1.0,
        "hue": (0.1, 0.1),
        "gamma": (1.3, 1.3),
    }
    x = 0.3 + 0.8 * (1.2 * VALUES - 0.3)
    gray = grayed(x)
    x = (1 - (gray + 1.4 * (x - gray))).clamp(0, 1)
    x = kornia.enhance.adjust_hue(x, 0.1 * 2 * math.pi) ** 1.3
    assert (path(plain(**options), IMAGES).double() - x).abs().max() < 2e-5
    solarised = torch.where(x >= 0.5, 1 - x, x)
    out = path(plain(**options, solarize_prob=1.0), IMAGES).double()
    clear = (x - 0.5).abs() > 1e-4
    assert (out - solarised)[clear].abs().max() < 2e-5


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_without_three_channels_there_is_no_saturation_or_hue(path, channels):
    images = photo(2, channels, 9, 12)
    options = {"saturation": (0.2, 0.2), "hue": (0.3, 0.3), "gray_prob": 1.0, "layout": "channels_first"}
    out = path(plain(**options, brightness=(0.7, 0.7), contrast=(1.4, 1.4)), images)
    expected = (0.5 + 1.4 * (0.7 * images.double() / 255 - 0.5)).clamp(0, 1)
    assert (out.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("channels", [1, 4])
def test_the_mean_of_other_channels_is_their_mean(path, channels):
    images = photo(2, channels, 9, 12)
    out = path(plain(contrast=(0.5, 0.5), contrast_pivot="mean", layout="channels_first"), images)
    x = images.double() / 255
    expected = x.mean((1, 2, 3), keepdim=True) + 0.5 * (x - x.mean((1, 2, 3), keepdim=True))
    assert (out.double() - expected).abs().max() < 1e-5


def test_the_mean_of_a_clip_is_one(path):
    clips = photo(2, 3, 3, 10, 12)
    out = path(plain(contrast=(0.5, 0.5), contrast_pivot="mean", layout="channels_first"), clips)
    x = clips.double() / 255
    mean = kornia.color.rgb_to_grayscale(x.flatten(0, 1)).view(2, -1).mean(1).view(2, 1, 1, 1, 1)
    assert (out.double() - (mean + 0.5 * (x - mean))).abs().max() < 1e-5


def test_the_mean_is_of_the_whole_image_not_of_the_crop(path):
    """What a crop shows doesn't change how its pixels look."""
    sizes = [(11, 20), (30, 9)]
    images = [photo(*size, 3, seed=k) for k, size in enumerate(sizes)]
    out = path(plain(contrast=(0.0, 0.0), contrast_pivot="mean", random_crop=5), images)
    for k, image in enumerate(images):
        mean = kornia.color.rgb_to_grayscale(image.movedim(-1, 0).double() / 255).mean()
        assert (out[k].double() - mean).abs().max() < 1e-5


def test_factors_are_drawn_alike_from_the_whole_range(path):
    aug = plain(brightness=0.4, contrast=(0.5, 0.5), contrast_pivot=0.0, layout="channels_first")
    gains = path.rows(aug, dots(2000))[:, Column.GAIN] * 2
    ordered = gains.double().sort().values
    assert ordered[0] >= 0.6 - 1e-6
    assert ordered[-1] <= 1.4 + 1e-6
    steps = (ordered - 0.6) / 0.8
    ideal = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    assert (steps - ideal).abs().max() < 1.95 / math.sqrt(2000)  # Kolmogorov and Smirnov: one in a thousand
