"""Boxes and key points through the same matrices as their images.

Coordinates are continuous: an image of width W spans 0 to W, and the centre of its first pixel is at 0.5. A
horizontal flip takes x to W − x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.errors import InputError

_HORIZON = 1e-6
"""Depths from here down can't be seen: what has one would be a million times as far out as it is wide."""


def forward_matrices(rows: Tensor) -> Tensor:
    """N × 3 × 3, input → output, from rows that hold output → input: the adjugate, which needs no pivoting."""
    a, b, c, d, e, f, g, h, i = rows[:, :9].unbind(1)
    adjugate = torch.stack(
        [
            e * i - f * h, c * h - b * i, b * f - c * e,
            f * g - d * i, a * i - c * g, c * d - a * f,
            d * h - e * g, b * g - a * h, a * e - b * d,
        ],
        1,
    )  # fmt: skip
    return adjugate.view(-1, 3, 3) / (a * adjugate[:, 0] + b * adjugate[:, 3] + c * adjugate[:, 6])[:, None, None]


def move_points(points: Tensor, matrices: Tensor) -> Tensor:
    """N × K × 2 points, moved with their images; those that leave the image keep their place outside it.

    One beyond the horizon of a perspective has no place: it ends up far outside.
    """
    moved = _through(points, matrices)
    return (moved[..., :2] / moved[..., 2:].clamp(min=_HORIZON) + 0.5).to(points.dtype)


def move_boxes(boxes: Tensor, matrices: Tensor, size: tuple[int, int], *, tilted: bool) -> Tensor:
    """N × K × 4 boxes (left, top, right, bottom): the upright box around the moved corners, cut at the image.

    A box that has left the image becomes 0, 0, 0, 0, so that the count stays and nothing has to be waited for.
    `tilted`: there may be a perspective, and of a box that reaches over its horizon only the part before it counts.
    """
    left, top, right, bottom = boxes.to(torch.float32).unbind(-1)
    count, boxes_each = boxes.shape[:2]
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], -1).view(count, boxes_each * 4, 2)
    moved = _through(corners, matrices).view(count, boxes_each, 4, 3)
    low, high = _bounds_in_front(moved) if tilted else _bounds(moved[..., :2] / moved[..., 2:])
    (left_in, top_in), (right_in, bottom_in) = (low + 0.5).clamp(min=0.0).unbind(-1), (high + 0.5).unbind(-1)
    cut = torch.stack([left_in, top_in, right_in.clamp(max=size[1]), bottom_in.clamp(max=size[0])], -1)
    left_over = ((cut[..., 2:] > cut[..., :2]).all(-1) & (right > left) & (bottom > top))[..., None]
    return torch.where(left_over, cut, 0.0).to(boxes.dtype)


def _through(points: Tensor, matrices: Tensor) -> Tensor:
    """N × K × 3: x, y and depth, still to be divided by it; pixel centres at whole numbers."""
    x, y = (points.to(torch.float32) - 0.5).unbind(-1)
    # Not by a matrix product: autocast would round its factors to bfloat16, TF32 to ten bits.
    rows = (matrices[:, row, :, None].unbind(1) for row in range(3))
    return torch.stack([along_x * x + along_y * y + shift for along_x, along_y, shift in rows], -1)


def _bounds(corners: Tensor) -> tuple[Tensor, Tensor]:
    return corners.amin(-2), corners.amax(-2)


def _bounds_in_front(corners: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of what lies before the horizon: of corners there, and of the places where sides cross it."""
    following = corners.roll(-1, -2)
    before, following_before = corners[..., 2:] > _HORIZON, following[..., 2:] > _HORIZON
    step = following - corners
    share = (_HORIZON - corners[..., 2:]) / torch.where(before != following_before, step[..., 2:], 1.0)
    crossings = (corners + share * step)[..., :2] / _HORIZON
    places = torch.cat([corners[..., :2] / corners[..., 2:].clamp(min=_HORIZON), crossings], -2)
    counts = torch.cat([before, before != following_before], -2)
    return torch.where(counts, places, torch.inf).amin(-2), torch.where(counts, places, -torch.inf).amax(-2)


def check_points(name: str, points: object, count: int, last: int, device: torch.device) -> Tensor:
    """The tensor, if it is one row of points per image."""
    if not isinstance(points, Tensor) or points.dim() != 3 or points.shape[0] != count or points.shape[2] != last:
        found = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise InputError(f"{name} must be a tensor N×K×{last} with N = {count} (pad with zeros), found {found}")
    if points.device != device:
        raise InputError(f"{name} is on {points.device} and images on {device}: move one")
    if not points.dtype.is_floating_point:
        raise InputError(f"{name} has dtype {points.dtype}; moved coordinates are not whole: pass floats")
    return points
