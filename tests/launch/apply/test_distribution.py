"""A chain that is moved to the GPU gives images distributed as those of its transforms, place by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.launch.apply.torchvision_like import (
    affine,
    invert,
    jitter,
    now_and_then,
    random_crop,
    resized_crop,
    rotation,
)
from tests.launch.apply.transforms_like import compose, flip, to_tensor
from torch import Tensor
from torch.nn import functional

from fulltilt.launch.apply import known_torchvision
from fulltilt.launch.apply.augment import Passes
from fulltilt.launch.apply.chains import chain_of
from fulltilt.launch.apply.pictures import Picture, join, pixels_of

COUNT = 384
SIGMAS = 5.0
SIZE = 20
"""Of the images that come out."""


@pytest.fixture(scope="module")
def photos() -> list[Any]:
    """Darker to the left and above, so that places and turns tell; no two are alike."""
    made = np.random.default_rng(0)
    y, x = np.mgrid[0:26, 0:28] / 28
    slope = np.stack([x, y, (x + y) / 2], -1) * 120 + 50
    rough = [Image.fromarray(made.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((28, 26)) for _ in range(COUNT)]
    return [Image.fromarray((slope + np.array(one) / 3).astype(np.uint8)) for one in rough]


def one_by_one(members: list[Any], photos: list[Any]) -> Tensor:
    torch.manual_seed(1)
    transform = compose(*members, to_tensor())
    return torch.stack([transform(photo) for photo in photos])


def moved(members: list[Any], photos: list[Any]) -> Tensor:
    """What stays is done first; the rest batch by batch, as in training."""
    chain = chain_of([*members, to_tensor()], known_torchvision.known)
    assert chain is not None
    torch.manual_seed(2)
    first, passes = compose(*members[: chain.stay]), Passes(chain)
    passes.begin_epoch()
    pictures = [Picture(pixels_of(first(photo)), lambda: pytest.fail("nobody wants it")) for photo in photos]
    return torch.cat([passes.over(join(pictures[at : at + 64])) for at in range(0, COUNT, 64)]).cpu()


def cells(images: Tensor) -> Tensor:
    """N × 48: the means of four by four cells in three channels."""
    return functional.adaptive_avg_pool2d(images, 4).flatten(1)


CASES: dict[str, tuple[int, Callable[[], list[Any]]]] = {
    # Steps in which Pillow cuts a level's fraction off: they make an image darker by half a level each.
    "a crop": (0, lambda: [random_crop(SIZE), flip()]),
    "a crop, turned": (0, lambda: [random_crop(SIZE), rotation(30)]),
    "a resized crop, turned": (0, lambda: [resized_crop(SIZE, (0.3, 1.0)), flip(), rotation(30)]),
    "a crop, turned, scaled and shifted": (0, lambda: [random_crop(SIZE), affine(15, (0.2, 0.1), (0.7, 1.0))]),
    "a crop of what was turned": (0, lambda: [rotation(30), random_crop(SIZE)]),
    "turned to one side": (0, lambda: [rotation((0, 30))]),
    "turned to one side, flipped": (0, lambda: [rotation((0, 30)), flip()]),
    "flipped, turned to one side": (0, lambda: [flip(), rotation((0, 30))]),
    "turned, contrast": (1, lambda: [rotation(45), jitter(contrast=0.9)]),
    "contrast, turned": (1, lambda: [jitter(contrast=0.9), rotation(45)]),
    "padded, inverted": (0, lambda: [random_crop(SIZE, padding=6), invert()]),
    "white corners, brightness": (1, lambda: [rotation(45, fill=255), jitter(brightness=0.6)]),
    "now and then": (0, lambda: [resized_crop(SIZE), now_and_then(0.5, rotation(45)), invert(0.3)]),
    "all colours": (4, lambda: [resized_crop(SIZE), flip(), jitter(0.4, 0.4, 0.4, 0.1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_distributed_alike(photos: list[Any], name: str) -> None:
    """Means within five standard errors, which are the draws' own: seeds are fixed, so it does not change by chance."""
    steps, members = CASES[name]
    theirs, ours = cells(one_by_one(members(), photos)), cells(moved(members(), photos))
    error = ((theirs.var(0) + ours.var(0)) / COUNT).sqrt()
    apart = (theirs.mean(0) - ours.mean(0) + steps * 0.5 / 255).abs()
    assert (apart / (SIGMAS * error + 0.5 / 255)).max() <= 1.0


def test_what_is_turned_before_it_is_cropped_may_be_of_any_size(photos: list[Any]) -> None:
    some = [photo.resize((24 + number % 5, 30 - number % 3)) for number, photo in enumerate(photos)]
    assert moved([rotation(30), random_crop(SIZE)], some).shape == (COUNT, 3, SIZE, SIZE)
