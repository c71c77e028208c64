"""Whole checks that run in the interpreter with small images and on a GPU with large ones."""

from __future__ import annotations

from typing import Any

import torch
from tests.augment.cases import Case
from tests.augment.support import (
    Path,
    about_centre,
    plain,
    rotate,
    rounding,
    sample,
    sample_labels,
    stretch,
    torch_path,
)
from torch import Tensor

from fulltilt.augment import GPUAugmentation


def check_rotation(path: Path, case: Case, degrees: float, fill: float | str) -> None:
    """One flip and one rotation, against float64, with masks exact."""
    aug = plain(
        horizontal_flip_prob=1.0,
        rotation_degrees=(degrees, degrees),
        fill=fill,
        layout=case.layout,
        dtype=case.dtype,
        mask_fill=1,
    )
    result = path(aug, case.images, *(() if case.masks is None else (case.masks,)))
    images, masks = result if case.masks is not None else (result, None)
    size = tuple(case.planes.shape[-2:])
    inverse = about_centre(rotate(degrees) @ stretch(-1, 1), size)
    assert images.dtype == case.dtype
    assert images.shape == case.planes.shape
    # Places are computed in float32: on large images they are off by some 1e-4 of a pixel.
    tolerance = rounding(path, case.dtype) + 1e-4 + 2e-6 * max(size)
    for k, source in enumerate(case.planes):
        values = source.double() / (255 if source.dtype == torch.uint8 else 1)
        found = images[k].double() / (255 if case.dtype == torch.uint8 else 1)
        assert (found - sample(values, inverse, size, fill)).abs().max() < tolerance
        if masks is not None:
            expected, decided = sample_labels(case.masks[k].view(size), inverse, size, fill, mask_fill=1)
            assert masks.dtype == case.masks.dtype
            assert masks.shape == case.masks.shape
            assert torch.equal(masks[k].view(size)[decided], expected[decided])


def check_agreement(path: Path, aug: GPUAugmentation, images: Any, masks: Any, *, odd_ones: float = 0.0) -> None:
    """The kernels' result is torch's, except for a share of odd ones; so is the running index afterwards."""
    call = (images,) if masks is None else (images, masks)
    aug.set_epoch(0)
    with torch_path() as other:
        expected = other(aug, *call)
    state = aug._state.tolist()
    aug.set_epoch(0)
    found = path(aug, *call)
    assert aug._state.tolist() == state
    if masks is None:
        agree(path, found, expected, odd_ones=odd_ones)
        return
    agree(path, found[0], expected[0], odd_ones=odd_ones)
    assert found[1].dtype == expected[1].dtype
    assert found[1].shape == expected[1].shape
    other_label = found[1] != expected[1]
    assert float(other_label.double().mean()) < 0.004, "more than labels on the border between two"


def agree(path: Path, found: Tensor, expected: Tensor, *, odd_ones: float = 0.0) -> None:
    """Each is rounded once from numbers that are almost the same."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    if found.dtype == torch.uint8:
        allowed = torch.tensor(1.0, dtype=torch.float64)
    else:
        allowed = 2 * rounding(path, found.dtype) * expected.double().abs().clamp(min=1) + 5e-4
    apart = ~((found.double() - expected.double()).abs() <= allowed)  # a NaN is apart too
    assert float(apart.double().mean()) <= odd_ones, f"{int(apart.sum())} of {apart.numel()} are apart"
