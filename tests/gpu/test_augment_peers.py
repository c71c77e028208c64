"""Augmentation on a GPU against torchvision for each operation that both have, and against float64 for any input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.augment.cases import cases
from tests.augment.checks import check_agreement, check_rotation
from tests.augment.support import both_sides, kernels, labels, photo, plain, u
from tests.gpu.needs import library

from fulltilt.augment.layout import Uniform

LEVEL = 1 / 255
SIZE = (61, 80)


@pytest.fixture(scope="module")
def tv():
    return library("torchvision.transforms.v2.functional")


@pytest.fixture(scope="module")
def images():
    return photo(2, 3, *SIZE).cuda() / 255


COLOURS = {
    "brightness": ({"brightness": (1.4, 1.4)}, lambda tv, x: tv.adjust_brightness(x, 1.4)),
    "contrast": ({"contrast": (1.6, 1.6), "contrast_pivot": "mean"}, lambda tv, x: tv.adjust_contrast(x, 1.6)),
    "saturation": ({"saturation": (1.7, 1.7)}, lambda tv, x: tv.adjust_saturation(x, 1.7)),
    "hue": ({"hue": (-0.3, -0.3)}, lambda tv, x: tv.adjust_hue(x, -0.3)),
    "gamma": ({"gamma": (0.6, 0.6)}, lambda tv, x: tv.adjust_gamma(x, 0.6)),
    "gray": ({"gray_prob": 1.0}, lambda tv, x: tv.rgb_to_grayscale(x, 3)),
    "inversion": ({"invert_prob": 1.0}, lambda tv, x: tv.invert(x)),
    "solarised": ({"solarize_prob": 1.0, "solarize_threshold": 0.4}, lambda tv, x: tv.solarize(x, 0.4)),
    "blur": ({"blur_prob": 1.0, "blur_sigma": (1.5, 1.5)}, lambda tv, x: tv.gaussian_blur(x, [11, 11], [1.5, 1.5])),
    "flip": ({"horizontal_flip_prob": 1.0}, lambda tv, x: tv.horizontal_flip(x)),
}


@pytest.mark.parametrize("name", COLOURS)
def test_one_operation(tv, images, name):
    options, theirs = COLOURS[name]
    with kernels() as path:
        ours = path(plain(**options), images)
    assert (ours - theirs(tv, images).cpu()).abs().max() <= LEVEL


def test_posterised(tv, images):
    source = (images * 255).round().to(torch.uint8)
    with kernels() as path:
        ours = path(plain(posterize_prob=1.0, posterize_bits=3, dtype=torch.uint8), source)
    assert torch.equal(ours, tv.posterize(source, 3).cpu())


@pytest.mark.parametrize("masked", [False, True])
def test_affine(tv, images, masked):
    options = {"scale": (1.3, 1.3), "translate": (0.2, 0.1), "shear_degrees": (15.0, 10.0), "antialias": False}
    masks = labels(2, *SIZE)
    with kernels() as path:
        aug = plain(rotation_degrees=(25.0, 25.0), **options)
        ours = path(aug, images, masks) if masked else (path(aug, images),)
    for k in range(2):
        place = {
            "angle": 25.0,
            "translate": [
                both_sides(0.2, Uniform.TRANSLATE_X, k) * SIZE[1],
                both_sides(0.1, Uniform.TRANSLATE_Y, k) * SIZE[0],
            ],
            "scale": 1.3,
            "shear": [both_sides(15.0, Uniform.SHEAR_X, k), both_sides(10.0, Uniform.SHEAR_Y, k)],
        }
        theirs = tv.affine(images[k], **place, interpolation=tv.InterpolationMode.BILINEAR)
        assert (ours[0][k] - theirs.cpu()).abs().max() <= LEVEL
        if masked:
            nearest = tv.affine(masks[k][None].cuda(), **place, interpolation=tv.InterpolationMode.NEAREST)
            # torchvision rounds halves to even and computes places in another order.
            assert (ours[1][k] != nearest[0].cpu()).float().mean() < 2e-3


@pytest.mark.parametrize("to", [(24, 30), (100, 120)])
def test_random_resized_crop(tv, images, to):
    """Like Pillow's `resize(box=…)`, ours lets a filter reach over the crop's border; theirs cuts first. So: inside."""
    aug = plain(random_resized_crop=(0.4, 0.9), size=to)
    with kernels() as path:
        rows = path.rows(aug, images).double()
        ours = path(aug, images)
    for k in range(2):
        w, h = rows[k, 0] * to[1], rows[k, 4] * to[0]
        left, top = rows[k, 2] + 0.5 - rows[k, 0] / 2, rows[k, 5] + 0.5 - rows[k, 4] / 2
        box = [round(float(v)) for v in (top, left, h, w)]
        theirs = tv.resized_crop(images[k], *box, list(to), antialias=True).cpu()
        rim = max(1, math.ceil(0.5 / float(min(rows[k, 0], rows[k, 4]))))
        inside = (slice(None), slice(rim, -rim), slice(rim, -rim))
        assert (ours[k] - theirs)[inside].abs().max() <= LEVEL


def test_perspective(tv, images):
    with kernels() as path:
        ours = path(plain(perspective=0.4, perspective_prob=1.0, antialias=False), images)
    height, width = SIZE
    # torchvision puts the first pixel's centre at 0.5.
    corners = [(0.5, 0.5), (width - 0.5, 0.5), (width - 0.5, height - 0.5), (0.5, height - 0.5)]
    middle = (width / 2, height / 2)
    for k in range(2):
        ends = [
            [middle[j] + (corner[j] - middle[j]) * (1 - 0.4 * u(Uniform.PERSPECTIVE + 2 * c + j, k)) for j in range(2)]
            for c, corner in enumerate(corners)
        ]
        starts = [list(corner) for corner in corners]
        theirs = tv.perspective(images[k], starts, ends, interpolation=tv.InterpolationMode.BILINEAR)
        assert (ours[k] - theirs.cpu()).abs().max() <= LEVEL


# --- whatever comes in ---------------------------------------------------------------------------------------------


@settings(max_examples=14, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
@given(
    case=cases(height=600, width=500, batch=3),
    degrees=st.floats(-180, 180, width=32),
    fill=st.sampled_from([0.3, "reflect", "edge"]),
)
def test_a_rotation_of_anything(case, degrees, fill):
    with kernels() as path:
        check_rotation(path, case, degrees, fill)


def test_more_images_than_a_grid_has_rows():
    images = photo(70_000, 2, 4, 3)
    with kernels() as path:
        out = path(plain(horizontal_flip_prob=1.0, layout="channels_last", dtype=torch.uint8), images)
    assert torch.equal(out, images.movedim(-1, 1).flip(-1))


def test_more_than_two_to_the_31_elements():
    images = torch.randint(0, 256, (720, 1024, 1024, 3), dtype=torch.uint8, device="cuda")
    masks = images[..., 0].contiguous()
    out, labelled = plain(horizontal_flip_prob=1.0, dtype=torch.uint8)(images, masks)
    assert torch.equal(out[-1], images[-1].movedim(-1, 0).flip(-1))
    assert torch.equal(out[0], images[0].movedim(-1, 0).flip(-1))
    assert torch.equal(labelled[-1], masks[-1].flip(-1))


def test_images_scattered_over_memory():
    """A list on the GPU is not copied: offsets reach from the first image to the others, backwards too."""
    sizes = [(300, 200), (40, 50), (128, 64), (31, 257), (4, 4)]
    images = [photo(*size, 3, seed=k) for k, size in enumerate(sizes)]
    masks = [labels(*size) for size in sizes]
    far = [torch.empty(1 << 26, dtype=torch.uint8, device="cuda") for _ in range(3)]
    with kernels() as path:
        check_agreement(path, plain(random_resized_crop=True, size=(32, 48)), images[::-1], masks[::-1])
        check_agreement(path, plain(random_resized_crop=True, size=(32, 48)), images, masks)
    del far


# --- in somebody's loop --------------------------------------------------------------------------------------------


def test_back_and_forth_between_devices():
    aug = plain(horizontal_flip_prob=0.5, rotation_degrees=10.0)
    images = photo(4, 40, 50, 3)
    index = torch.arange(4)
    first = aug(images.cuda(), index=index)
    assert (aug(images, index=index) - first.cpu()).abs().max() < 1e-3
    assert torch.equal(aug(images.cuda(), index=index.cuda()), first)


def test_on_a_stream_of_its_own():
    aug = plain(rotation_degrees=10.0)
    images = photo(4, 40, 50, 3).cuda()
    index = torch.arange(4, device="cuda")
    expected = aug(images, index=index)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ours = aug(images, index=index)
    stream.synchronize()
    assert torch.equal(ours, expected)


def test_a_trace_shows_launches_and_nothing_that_waits():
    from torch.profiler import ProfilerActivity, profile

    aug = plain(rotation_degrees=10.0, brightness=0.2, blur_prob=0.3, contrast=0.2, contrast_pivot="mean")
    images, masks = photo(8, 64, 96, 3).cuda(), labels(8, 64, 96).cuda()
    for _ in range(2):
        aug(images, masks)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(4):
            aug(images, masks)
    names = [event.name for event in trace.events()]
    # The profiler itself waits for the device, once, when it stops.
    assert not [name for name in names if "StreamSynchronize" in name or "EventSynchronize" in name]
    assert not [name for name in names if "Memcpy" in name or "aten::copy_" in name or "_local_scalar" in name]
    assert sum("warp" in name for name in names) >= 4
