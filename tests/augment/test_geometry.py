"""Each movement alone, and all together, against torch's own sampler in float64 with a matrix built from its parts."""

from __future__ import annotations

import math

import pytest
import torch
from tests.augment.support import (
    about_centre,
    both_sides,
    homography,
    labels,
    photo,
    plain,
    rotate,
    rounding,
    sample,
    sample_labels,
    shear,
    shift,
    stretch,
    u,
)

from fulltilt.augment.layout import Uniform

SIZE = (19, 26)
IMAGES = photo(2, *SIZE, 3)
MASKS = labels(2, *SIZE)
FILLS = [0.0, 0.4, "reflect", "edge"]
HALF = ((SIZE[1] - 1) / 2, (SIZE[0] - 1) / 2)


def moved_corners(reach, index):
    """The corners, clockwise from the top left, and where perspective takes them: inwards."""
    x, y = HALF
    corners = torch.tensor([[-x, -y], [x, -y], [x, y], [-x, y]], dtype=torch.float64)
    inwards = [1 - reach * u(Uniform.PERSPECTIVE + k, index) for k in range(8)]
    return corners, corners * torch.tensor(inwards, dtype=torch.float64).view(4, 2)


def perspective(reach, index):
    return homography(*moved_corners(reach, index))


def moved(translate, index):
    x = both_sides(translate[0], Uniform.TRANSLATE_X, index) * SIZE[1]
    return shift(x, both_sides(translate[1], Uniform.TRANSLATE_Y, index) * SIZE[0])


def sheared(reach, index):
    return shear(both_sides(reach[0], Uniform.SHEAR_X, index), both_sides(reach[1], Uniform.SHEAR_Y, index))


MOVES = {
    "rotation": ({"rotation_degrees": (25.0, 25.0)}, lambda k: rotate(25)),
    "anticlockwise": ({"rotation_degrees": (-70.0, -70.0)}, lambda k: rotate(-70)),
    "larger": ({"scale": (1.7, 1.7)}, lambda k: stretch(1.7, 1.7)),
    "smaller": ({"scale": (0.6, 0.6)}, lambda k: stretch(0.6, 0.6)),
    "translation": ({"translate": (0.4, 0.2)}, lambda k: moved((0.4, 0.2), k)),
    "far away": ({"translate": 1.0}, lambda k: moved((1.0, 1.0), k)),
    "shear": ({"shear_degrees": 30.0}, lambda k: sheared((30, 0), k)),
    "shear both ways": ({"shear_degrees": (20.0, 35.0)}, lambda k: sheared((20, 35), k)),
    "perspective": ({"perspective": 0.5, "perspective_prob": 1.0}, lambda k: perspective(0.5, k)),
    "all": (
        {
            "horizontal_flip_prob": 1.0,
            "rotation_degrees": (12.0, 12.0),
            "scale": (0.9, 0.9),
            "translate": 0.1,
            "shear_degrees": (10.0, 5.0),
            "perspective": 0.3,
            "perspective_prob": 1.0,
        },
        lambda k: (
            perspective(0.3, k)
            @ moved((0.1, 0.1), k)
            @ stretch(0.9, 0.9)
            @ rotate(12)
            @ sheared((10, 5), k)
            @ stretch(-1, 1)
        ),
    ),
}


def check(images, masks, forward, fill, *, tolerance):
    for k in range(len(images)):
        inverse = about_centre(forward(k), SIZE)
        expected = sample(IMAGES[k].movedim(-1, 0).double() / 255, inverse, SIZE, fill)
        assert (images[k].double() - expected).abs().max() < tolerance
        found, decided = sample_labels(MASKS[k], inverse, SIZE, fill, mask_fill=200)
        assert decided.double().mean() > 0.9
        assert torch.equal(masks[k][decided], found[decided])


@pytest.mark.parametrize("name", MOVES)
def test_a_movement_is_the_samplers(path, name):
    options, forward = MOVES[name]
    images, masks = path(plain(**options, antialias=False, mask_fill=200), IMAGES, MASKS)
    check(images, masks, forward, 0.0, tolerance=1e-4)


@pytest.mark.parametrize("fill", FILLS, ids=str)
@pytest.mark.parametrize("name", ["rotation", "far away", "all"])
def test_what_lies_outside(path, name, fill):
    options, forward = MOVES[name]
    images, masks = path(plain(**options, antialias=False, fill=fill, mask_fill=200), IMAGES, MASKS)
    check(images, masks, forward, fill, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float16], ids=str)
def test_narrow_outputs_are_rounded_once(path, dtype):
    options, forward = MOVES["rotation"]
    images, masks = path(plain(**options, dtype=dtype, mask_fill=200), IMAGES, MASKS)
    assert images.dtype == dtype
    values = images.double() / (255 if dtype == torch.uint8 else 1)
    check(values, masks, forward, 0.0, tolerance=rounding(path, dtype) + 1e-4)


@pytest.mark.parametrize(
    ("mean", "std"), [((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5, 0.0, 1.0), (1.0, 2.0, 0.5))]
)
def test_normalisation_comes_after_the_fill(path, mean, std):
    options, forward = MOVES["rotation"]
    images = path(plain(**options, fill=0.4, normalize=(mean, std)), IMAGES)
    for k in range(2):
        expected = sample(IMAGES[k].movedim(-1, 0).double() / 255, about_centre(forward(k), SIZE), SIZE, 0.4)
        column = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
        centre, spread = column
        assert (images[k].double() - (expected - centre) / spread).abs().max() < 1e-4 / min(std)


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_every_number_of_channels(path, channels):
    options, forward = MOVES["all"]
    source = photo(2, channels, *SIZE)
    aug = plain(**options, antialias=False, layout="channels_first")
    images = path(aug, source)
    for k in range(2):
        expected = sample(source[k].double() / 255, about_centre(forward(k), SIZE), SIZE)
        assert (images[k].double() - expected).abs().max() < 1e-4


def test_frames_of_a_clip_move_together(path):
    options, forward = MOVES["all"]
    clips, masks = photo(2, 3, 3, *SIZE), labels(2, 3, *SIZE)
    out, out_masks = path(plain(**options, antialias=False, layout="channels_first"), clips, masks)
    assert out.shape == (2, 3, 3, *SIZE)
    assert out_masks.shape == (2, 3, *SIZE)
    for k in range(2):
        inverse = about_centre(forward(k), SIZE)
        for t in range(3):
            expected = sample(clips[k, t].double() / 255, inverse, SIZE)
            assert (out[k, t].double() - expected).abs().max() < 1e-4
            found, decided = sample_labels(masks[k, t], inverse, SIZE)
            assert torch.equal(out_masks[k, t][decided], found[decided])


def test_a_right_angle_by_rotation_is_a_quarter_turn(path):
    """The convention, without a matrix: positive degrees turn clockwise on the screen."""
    images = photo(1, 3, 16, 16)
    out = path(plain(rotation_degrees=(90.0, 90.0)), images)
    assert (out - torch.rot90(images, -1, (-2, -1)) / 255).abs().max() < 1e-4


def test_halves_of_labels_go_up(path):
    """A shift by exactly half a pixel: every label has two nearest, and takes the one at the larger coordinate."""
    masks = torch.arange(8).view(1, 1, 8).expand(1, 8, 8).contiguous()
    aug = plain(size=(8, 4), antialias=False)
    _, out = path(aug, photo(1, 3, 8, 8), masks)
    # Output x lies at 2x + 0.5.
    assert torch.equal(out[0, 0], torch.tensor([1, 3, 5, 7]))


def test_straight_samples_stay_exact_beside_tilted_ones(path):
    images = photo(4, 3, 12, 15)
    out = path(plain(perspective=0.4, perspective_prob=0.5, dtype=torch.uint8), images)
    tilted = [u(Uniform.PERSPECTIVE_IF, k) < 0.5 for k in range(4)]
    assert len(set(tilted)) == 2
    for k in range(4):
        assert torch.equal(out[k], images[k]) != tilted[k]


def test_perspective_takes_corners_where_it_says():
    """A bright dot in the centre of mass of four corners' worth of dots would hide a swap: look at each corner."""
    height, width = 41, 61
    for corner, (cx, cy) in enumerate([(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]):
        image = torch.zeros(1, 1, height, width)
        image[0, 0, max(cy - 1, 0) : cy + 2, max(cx - 1, 0) : cx + 2] = 1.0
        out = plain(perspective=0.5, perspective_prob=1.0, antialias=False)(image)[0, 0].double()
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        found = torch.stack([(out * xs).sum(), (out * ys).sum()]) / out.sum()
        half = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
        inwards = torch.tensor(
            [1 - 0.5 * u(Uniform.PERSPECTIVE + 2 * corner + k, 0) for k in range(2)], dtype=torch.float64
        )
        sign = torch.tensor([math.copysign(1, cx - 1), math.copysign(1, cy - 1)], dtype=torch.float64)
        assert (found - (half + sign * half * inwards)).abs().max() < 1.0
