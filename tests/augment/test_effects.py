"""Noise, blur and erasing."""

from __future__ import annotations

import math
from statistics import NormalDist

import kornia.filters
import pytest
import torch
from tests.augment.support import dots, labels, philox, photo, plain, rounding, u, word
from torch.nn import functional as F

from fulltilt.augment.layout import Column, Uniform

# --- noise ---------------------------------------------------------------------------------------------------------


def noise(path, *shape, std=0.1, **options):
    """The noise alone: on even gray it is never cut off."""
    images = torch.full(shape, 0.5)
    return (path(plain(noise_std=std, layout="channels_first", **options), images).double() - 0.5) / std


def correlation(a, b):
    return float((a * b).mean())


def test_noise_is_normal_and_independent(path):
    side = 32 if path.name == "kernels" else 64
    n = noise(path, 4, 6, side, side)
    count = n.numel()
    assert abs(float(n.mean())) < 4 / math.sqrt(count)
    assert abs(float(n.var()) - 1) < 4 * math.sqrt(2 / count)
    assert abs(float((n**3).mean())) < 4 * math.sqrt(15 / count)
    assert abs(float((n**4).mean()) - 3) < 4 * math.sqrt(96 / count)
    ordered = n.flatten().sort().values
    normal = 0.5 * (1 + torch.erf(ordered / math.sqrt(2)))
    ideal = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    assert (normal - ideal).abs().max() < 1.95 / math.sqrt(count)
    pairs = {
        "columns": (n[..., 1:], n[..., :-1]),
        "rows": (n[:, :, 1:], n[:, :, :-1]),
        "samples": (n[1:], n[:-1]),
        "channels": (n[:, 1:], n[:, :-1]),
        "channels of two blocks": (n[:, 4:], n[:, :2]),
        "magnitudes of channels": (n[:, 0].abs() - math.sqrt(2 / math.pi), n[:, 1].abs() - math.sqrt(2 / math.pi)),
    }
    for name, (a, b) in pairs.items():
        assert abs(correlation(a, b)) < 4 / math.sqrt(a.numel()), name


def test_frames_have_noise_of_their_own(path):
    n = noise(path, 2, 3, 3, 20, 20)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert abs(correlation(n[:, a], n[:, b])) < 4 / math.sqrt(n[:, a].numel())


def test_epochs_have_noise_of_their_own(path):
    aug = plain(noise_std=0.1)
    first = path(aug, torch.full((1, 3, 20, 20), 0.5)).double() - 0.5
    aug.set_epoch(1)
    second = path(aug, torch.full((1, 3, 20, 20), 0.5)).double() - 0.5
    assert abs(correlation(first, second)) / 0.01 < 4 / math.sqrt(first.numel())


def test_noise_is_cut_at_black_and_white(path):
    out = path(plain(noise_std=0.5), torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 16, 16))
    assert float(out.min()) == 0.0
    assert float(out.max()) == 1.0
    assert 0.4 < float((out[0] == 0).double().mean()) < 0.6


def test_the_kernels_noise_is_torchs(kernel_path):
    images = photo(2, 6, 10, 20)
    aug = plain(noise_std=0.2, layout="channels_first")
    index = torch.tensor([5, 1 << 40])
    ours = kernel_path(aug, images, index=index)
    x = images.double() / 255
    for k, sample in enumerate(index.tolist()):
        key = [word(0, 0, sample, Uniform.NOISE_KEY + j) for j in range(2)]
        for c in range(6):
            for pixel in (0, 1, 77, 199):
                share = ((philox((pixel, 0, c // 4, 0), key)[c % 4] >> 8) + 0.5) / 2**24
                normal = NormalDist().inv_cdf(share)
                expected = min(max(float(x[k, c].flatten()[pixel]) + 0.2 * normal, 0), 1)
                assert float(ours[k, c].flatten()[pixel]) == pytest.approx(expected, abs=1e-5)


# --- blur ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 0.6, 1.0, 2.4])
def test_blur_is_kornias(path, sigma):
    images = photo(1, 3, 15, 18)
    out = path(plain(blur_prob=1.0, blur_sigma=(sigma, sigma)), images)
    window = 2 * math.ceil(3 * sigma) + 1
    expected = kornia.filters.gaussian_blur2d(images.double() / 255, window, (sigma, sigma), border_type="reflect")
    assert (out.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16], ids=str)
def test_blur_in_narrow_types(path, dtype):
    images = photo(1, 3, 12, 18)
    out = path(plain(blur_prob=1.0, blur_sigma=(1.0, 1.0), dtype=dtype), images)
    expected = kornia.filters.gaussian_blur2d(images.double() / 255, 7, (1.0, 1.0), border_type="reflect")
    values = out.double() / (255 if dtype == torch.uint8 else 1)
    # The first pass is rounded to the output's type or to float16 before the second one reads it.
    assert (values - expected).abs().max() < 3 * rounding(path, dtype) + 2**-11


def test_blur_of_a_part_of_the_batch(path):
    images = photo(4, 3, 9, 10)
    out = path(plain(blur_prob=0.5, blur_sigma=(1.0, 1.0), dtype=torch.uint8), images)
    blurred = [u(Uniform.BLUR_IF, k) < 0.5 for k in range(4)]
    assert len(set(blurred)) == 2
    for k in range(4):
        assert torch.equal(out[k], images[k]) != blurred[k]


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 3)])
def test_blur_wider_than_the_image(path, size):
    """An image of one value stays so, whatever the border does."""
    out = path(plain(blur_prob=1.0, blur_sigma=(3.0, 3.0), layout="channels_first"), torch.full((1, 3, *size), 0.25))
    assert (out - 0.25).abs().max() < 1e-6


def test_blur_comes_after_normalisation_and_before_erasing(path):
    images = photo(2, 3, 16, 16)
    options = {"blur_prob": 1.0, "blur_sigma": (1.0, 1.0), "normalize": "imagenet"}
    aug = plain(**options, erase_prob=1.0, erase_value=-7.0, erase_area=(0.1, 0.2))
    out, whole = path(aug, images), path(plain(**options), images)
    erased = out == -7.0
    assert 0.05 < float(erased.double().mean()) < 0.3
    assert torch.equal(out[~erased], whole[~erased])
    mean, std = (torch.tensor(v).view(3, 1, 1).double() for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    weights = torch.exp(-0.5 * torch.arange(-3.0, 4.0).double() ** 2)
    weights = (weights / weights.sum()).expand(3, 1, 1, 7)
    x = F.pad((images.double() / 255 - mean) / std, (3, 3, 3, 3), mode="reflect")
    expected = F.conv2d(F.conv2d(x, weights, groups=3), weights.transpose(2, 3), groups=3)
    assert (whole.double() - expected).abs().max() < 1e-5


# --- erasing -------------------------------------------------------------------------------------------------------


def test_an_erased_box_is_a_box_of_its_value(path):
    images, masks = photo(4, 3, 20, 24), labels(4, 20, 24)
    aug = plain(erase_prob=1.0, erase_value=2.5, erase_area=(0.05, 0.3), erase_ratio=(0.5, 2.0))
    out, out_masks = path(aug, images, masks)
    assert torch.equal(out_masks, masks)
    for k in range(4):
        area = (0.05 + 0.25 * u(Uniform.ERASE_AREA, k)) * 20 * 24
        ratio = math.exp(math.log(0.5) + math.log(4) * u(Uniform.ERASE_RATIO, k))
        h, w = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
        top, left = math.floor(u(Uniform.ERASE_Y, k) * (21 - h)), math.floor(u(Uniform.ERASE_X, k) * (25 - w))
        expected = images[k].double() / 255
        expected[:, top : top + h, left : left + w] = 2.5
        assert (out[k].double() - expected).abs().max() < 1e-6


def test_erased_boxes_keep_to_their_limits(path):
    count, side = 2000, 100
    aug = plain(erase_prob=0.25, erase_area=(0.02, 0.33), erase_ratio=(0.3, 3.3), size=side, layout="channels_first")
    rows = path.rows(aug, dots(count))
    left, top, right, bottom = rows[:, Column.ERASE : Column.ERASE + 4].double().unbind(1)
    drawn = right > left
    assert abs(float(drawn.double().mean()) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / count)
    w, h = (right - left)[drawn], (bottom - top)[drawn]
    assert bool(((left >= 0) & (top >= 0) & (right <= side) & (bottom <= side)).all())
    area, slack = w * h / side**2, 2 / side
    assert float(area.min()) > 0.02 - slack
    assert float(area.max()) < 0.33 + slack
    ratio = h / w
    assert float(ratio.min()) > 0.3 * 0.9
    assert float(ratio.max()) < 3.3 * 1.1
    assert float(area.max()) > 0.3
    assert float(area.min()) < 0.03


def test_all_of_it_may_be_erased(path):
    out = path(plain(erase_prob=1.0, erase_area=(1.0, 1.0), erase_ratio=(1.0, 1.0), erase_value=0.5), photo(1, 3, 9, 9))
    assert bool((out == 0.5).all())
