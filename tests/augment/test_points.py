"""Boxes and key points go where their pixels go: found by looking at pixels."""

from __future__ import annotations

import pytest
import torch
from tests.augment.support import plain, torch_path

from fulltilt.augment import GPUAugmentation
from fulltilt.augment.points import move_points

SIZE = (40, 50)
MOVES = {
    "flip": {"horizontal_flip_prob": 1.0},
    "turn": {"vertical_flip_prob": 1.0, "quarter_turn_prob": 1.0},
    "rotation": {"rotation_degrees": (20.0, 20.0)},
    "affine": {"rotation_degrees": 10.0, "scale": (0.8, 1.2), "translate": 0.1, "shear_degrees": (8.0, 8.0)},
    "perspective": {"perspective": 0.25, "perspective_prob": 1.0},
    "crop": {"random_resized_crop": (0.7, 1.0), "size": (80, 64)},
    "resize": {"size": (20, 100)},
    "everything": {
        "horizontal_flip_prob": 1.0,
        "rotation_degrees": 15.0,
        "scale": (0.8, 1.1),
        "perspective": 0.2,
        "perspective_prob": 1.0,
        "random_resized_crop": (0.8, 1.0),
        "size": (60, 70),
    },
}


def centre_of(bright):
    """The centre of brightness, with the first pixel's centre at 0.5."""
    ys, xs = torch.meshgrid(*(torch.arange(s, dtype=torch.float64) + 0.5 for s in bright.shape), indexing="ij")
    return torch.stack([(bright * xs).sum(), (bright * ys).sum()]) / bright.sum()


def check_points(path, name):
    spots = [(15, 12), (30, 20), (24, 28)]
    images = torch.zeros(len(spots), 1, *SIZE)
    for k, (x, y) in enumerate(spots):  # a soft spot, so that shrinking loses nothing
        images[k, 0, y - 2 : y + 3, x - 2 : x + 3] = 0.5
        images[k, 0, y - 1 : y + 2, x - 1 : x + 2] = 1.0
    points = torch.tensor(spots, dtype=torch.float32).view(-1, 1, 2) + 0.5
    out, moved = path(plain(**MOVES[name], seed=3), images, keypoints=points)
    for k in range(len(spots)):
        assert (centre_of(out[k, 0].double()) - moved[k, 0]).abs().max() < 0.12


@pytest.mark.parametrize("name", MOVES)
def test_a_point_is_where_its_pixel_is(name):
    with torch_path() as path:
        check_points(path, name)


@pytest.mark.parametrize("name", ["flip", "everything"])  # points come from the rows: two ways are enough
def test_a_point_is_where_the_kernels_put_its_pixel(kernel_path, name):
    check_points(kernel_path, name)


@pytest.mark.parametrize("name", MOVES)
def test_a_box_is_drawn_around_its_pixels(name):
    left, top, right, bottom = 18, 14, 30, 26
    mask = torch.zeros(4, *SIZE, dtype=torch.int64)
    mask[:, top:bottom, left:right] = 1
    boxes = torch.tensor([[[left, top, right, bottom]]]).float().expand(4, 1, 4)
    _, labels, moved = plain(**MOVES[name], seed=5)(torch.zeros(4, 3, *SIZE), mask, boxes=boxes)
    for k in range(4):
        ys, xs = torch.nonzero(labels[k], as_tuple=True)
        found = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).float()
        # The box holds all of it, with less than two output pixels to spare: a corner may miss every pixel's centre.
        scale = labels.shape[-1] / SIZE[1] * 1.5
        assert bool((moved[k, 0, :2] <= found[:2] + 0.6).all())
        assert bool((moved[k, 0, 2:] >= found[2:] - 0.6).all())
        assert (moved[k, 0] - found).abs().max() < 1.0 + scale


def test_exact_flips():
    boxes = torch.tensor([[[2.0, 3.0, 10.0, 12.0]]])
    points = torch.tensor([[[2.0, 3.0], [0.5, 0.5]]])
    _, moved, moved_points = plain(horizontal_flip_prob=1.0)(torch.zeros(1, 3, *SIZE), boxes=boxes, keypoints=points)
    assert torch.allclose(moved, torch.tensor([[[40.0, 3.0, 48.0, 12.0]]]), atol=1e-4)
    assert torch.allclose(moved_points, torch.tensor([[[48.0, 3.0], [49.5, 0.5]]]), atol=1e-4)


def test_boxes_that_leave_become_nothing():
    boxes = torch.tensor(
        [[[0.0, 0.0, 4.0, 4.0], [20.0, 15.0, 30.0, 25.0], [0.0, 15.0, 30.0, 25.0], [0.0, 0.0, 0.0, 0.0]]]
    )
    _, moved = plain(scale=(4.0, 4.0))(torch.zeros(1, 3, *SIZE), boxes=boxes)
    assert torch.equal(moved[0, 0], torch.zeros(4))
    assert torch.equal(moved[0, 3], torch.zeros(4))
    assert torch.allclose(moved[0, 1], torch.tensor([5.0, 0.0, 45.0, 40.0]), atol=1e-3)
    assert torch.allclose(moved[0, 2], torch.tensor([0.0, 0.0, 45.0, 40.0]), atol=1e-3)


def test_boxes_over_the_border_are_cut_and_odd_ones_are_nothing():
    nan = float("nan")
    boxes = torch.tensor([[[-5.0, -5.0, 3.0, 3.0], [60.0, 60.0, 70.0, 70.0], [9.0, 9.0, 4.0, 4.0], [nan] * 4]])
    _, moved = plain()(torch.zeros(1, 3, *SIZE), boxes=boxes)
    assert torch.equal(moved[0], torch.tensor([[0.0, 0, 3, 3], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_types_and_order_of_what_comes_back(dtype):
    call = {"boxes": torch.zeros(2, 3, 4, dtype=dtype), "keypoints": torch.zeros(2, 5, 2, dtype=dtype)}
    images, masks, boxes, points = GPUAugmentation()(
        torch.zeros(2, 3, *SIZE), torch.zeros(2, *SIZE, dtype=torch.int32), **call
    )
    assert images.shape == (2, 3, *SIZE)
    assert masks.dtype == torch.int32
    assert (boxes.shape, boxes.dtype) == ((2, 3, 4), dtype)
    assert (points.shape, points.dtype) == ((2, 5, 2), dtype)


def test_eval_mode_moves_them_with_the_resize():
    boxes = torch.tensor([[[10.0, 10.0, 20.0, 30.0]]])
    _, moved = GPUAugmentation(size=(20, 100)).eval()(torch.zeros(1, 3, *SIZE), boxes=boxes)
    assert torch.allclose(moved, torch.tensor([[[20.0, 5.0, 40.0, 15.0]]]), atol=1e-4)


def test_autocast_leaves_coordinates_alone():
    aug, again = (plain(rotation_degrees=30.0, seed=2) for _ in range(2))
    images = torch.zeros(2, 1, 8, 1000)
    points, boxes = (
        torch.tensor([[[901.25, 3.5]]]).expand(2, 1, 2),
        torch.tensor([[[890.5, 1.0, 920.25, 7.0]]]).expand(2, 1, 4),
    )
    plainly = aug(images, boxes=boxes, keypoints=points)
    with torch.autocast("cpu", torch.bfloat16):
        cast = again(images, boxes=boxes, keypoints=points)
    assert all(torch.equal(a, b) for a, b in zip(cast, plainly, strict=True))


def test_boxes_near_a_horizon_are_around_their_pixels_or_gone():
    side, size = 96, 64
    tilts = {"perspective": 0.8, "perspective_prob": 1.0, "random_resized_crop": (0.08, 0.3), "size": size}
    generator, gone = torch.Generator().manual_seed(0), 0
    for seed in range(20):  # about one box in 300 lies partly beyond the horizon
        masks, boxes = torch.zeros(16, side, side, dtype=torch.uint8), torch.zeros(16, 1, 4)
        for k in range(16):
            left, top = torch.randint(0, side - 16, (2,), generator=generator).tolist()
            width, height = torch.randint(4, 16, (2,), generator=generator).tolist()
            masks[k, top : top + height, left : left + width] = 1
            boxes[k, 0] = torch.tensor([left, top, left + width, top + height])
        _, labels, moved = plain(**tilts, seed=seed)(torch.zeros(16, 1, side, side), masks, boxes=boxes)
        for label, (left, top, right, bottom) in zip(labels, moved[:, 0].tolist(), strict=True):
            ys, xs = torch.where(label == 1)
            if len(xs) == 0:
                gone += 1
                assert (right - left) * (bottom - top) < size  # at most a sliver that no pixel's centre falls on
            else:
                assert left - 1 <= xs.min()
                assert xs.max() + 1 <= right + 1
                assert top - 1 <= ys.min()
                assert ys.max() + 1 <= bottom + 1
    assert gone > 50


def test_points_beyond_a_horizon_are_far_outside():
    matrix = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -0.1, 1.0]]])  # the horizon is at y = 10
    points = torch.tensor([[[3.5, 5.5], [3.5, 10.5], [3.5, 20.5]]])
    moved = move_points(points, matrix)[0]
    assert torch.allclose(moved[0], torch.tensor([6.5, 10.5]))
    assert (moved[1:].abs() > 1e5).all()
