"""Whole checks that run in the interpreter with small images and on a GPU with large ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from tests.augment.cases import Case
from tests.augment.support import (
    Path,
    about_centre,
    mirror,
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
from fulltilt.augment.batch import make_batch
from fulltilt.augment.layout import Ops
from fulltilt.augment.spec import Fill, Spec


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
    """The kernels' result is torch's, except for a share of odd ones; so is the running index afterwards.

    Labels are held to what their places say, torch's own as well.
    """
    call = (images,) if masks is None else (images, masks)
    aug.set_epoch(0)
    with torch_path() as other:
        allowed = None if masks is None else Labels.of(other, aug, images, masks)
        expected = other(aug, *call)
    state = aug._state.tolist()
    aug.set_epoch(0)
    found = path(aug, *call)
    assert aug._state.tolist() == state
    if allowed is None:
        agree(path, found, expected, odd_ones=odd_ones)
        return
    agree(path, found[0], expected[0], odd_ones=odd_ones)
    assert found[1].dtype == expected[1].dtype
    assert found[1].shape == expected[1].shape
    allowed.check(expected[1])
    allowed.check(found[1])


def agree(path: Path, found: Tensor, expected: Tensor, *, odd_ones: float = 0.0) -> None:
    """Each is rounded once from numbers that are almost the same."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert _steps(found) == _steps(expected)
    if found.dtype == torch.uint8:
        allowed = torch.tensor(1.0, dtype=torch.float64)
    else:
        allowed = 2 * rounding(path, found.dtype) * expected.double().abs().clamp(min=1) + 5e-4
    apart = ~((found.double() - expected.double()).abs() <= allowed)  # a NaN is apart too
    assert float(apart.double().mean()) <= odd_ones, f"{int(apart.sum())} of {apart.numel()} are apart"


def _steps(tensor: Tensor) -> list[int]:
    """Strides, where there is more than one to step over."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


TIE = 1e-3
"""So near to the border between two pixels, float32 may take a place to either side."""
_ROUNDING = 5e-7
"""Of the terms that a place is made of, relative: a few operations in float32, here and in the draws."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What a call's labels may be: computed in float64 from the rows that torch draws, whoever makes them."""

    rows: Tensor
    masks: list[Tensor]
    """Of each sample: frames × height × width."""
    spec: Spec

    @classmethod
    def of(
        cls, path: Path, aug: GPUAugmentation, images: Any, masks: Any, index: Tensor | None = None
    ) -> Labels:  # fmt: skip
        """To be asked for before the call: the running index decides what is drawn."""
        batch = make_batch(images, masks, aug._layout)
        found = [mask for mask in batch.sample_masks() if mask is not None]
        return cls(rows=path.rows(aug, images, index), masks=found, spec=aug._spec(batch, counted=False))

    def check(self, found: Tensor) -> None:
        """Each is the nearest one; on a border between two, either."""
        size = (self.spec.out_h, self.spec.out_w)
        given = found.reshape(-1, *size)
        assert len(given) == sum(map(len, self.masks))
        for row, mask, labels in zip(self.rows, self.masks, given.split([len(m) for m in self.masks]), strict=True):
            x, y, free = self._places(row[:9].double().view(3, 3))
            fits = free.expand(labels.shape).clone()
            for across, down in itertools.product((0.0, -TIE, TIE), repeat=2):
                fits |= labels == self._nearest(mask, x + across, y + down)
            wrong = (~fits).nonzero()
            assert not len(wrong), f"{len(wrong)} of {fits.numel()} labels, first at {wrong[0].tolist()}"

    def _places(self, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, y, and where float32 can't tell: only far out under a perspective, where little depth is left."""
        oy, ox = torch.meshgrid(
            *(torch.arange(side, dtype=torch.float64) for side in (self.spec.out_h, self.spec.out_w)), indexing="ij"
        )
        ones = torch.stack([ox, oy, torch.ones_like(ox)], -1)
        x, y, depth = (ones @ inverse.T).unbind(-1)
        sum_x, sum_y, sum_depth = (ones @ inverse.abs().T * _ROUNDING).unbind(-1)
        if Ops.PERSPECTIVE not in self.spec.ops:
            assert max(float(sum_x.max()), float(sum_y.max())) < TIE, "the images are too large for this tolerance"
            return x, y, torch.zeros_like(x, dtype=torch.bool)
        seen = depth > 0.0
        over = 1.0 / torch.where(seen, depth, 1.0)
        x, y = x * over, y * over
        error = torch.maximum(sum_x + x.abs() * sum_depth, sum_y + y.abs() * sum_depth) * over
        free = (error > TIE) | (depth.abs() < sum_depth)
        return torch.where(seen, x, -1e6), torch.where(seen, y, -1e6), free

    def _nearest(self, mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
        height, width = mask.shape[-2:]
        leaves = Ops.OUTSIDE in self.spec.ops
        if leaves and self.spec.fill_mode is Fill.REFLECT:
            x, y = mirror(x, width), mirror(y, height)
        near_x, near_y = torch.floor(x + 0.5).long(), torch.floor(y + 0.5).long()
        labels = mask[:, near_y.clamp(0, height - 1), near_x.clamp(0, width - 1)]
        if leaves and self.spec.fill_mode is Fill.CONSTANT:
            inside = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
            labels = torch.where(inside, labels, torch.tensor(self.spec.mask_fill).to(labels.dtype))
        return labels
