"""Boxes and key points through the same matrices as their images.

Coordinates are continuous: an image of width W spans 0 to W, and the centre of its first pixel is at 0.5. A
horizontal flip takes x to W − x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.errors import InputError


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
    """N × K × 2 points, moved with their images; those that leave the image keep their place outside it."""
    centred = points.to(torch.float32) - 0.5
    moved = centred @ matrices[:, :, :2].transpose(1, 2) + matrices[:, None, :, 2]
    return (moved[..., :2] / moved[..., 2:] + 0.5).to(points.dtype)


def move_boxes(boxes: Tensor, matrices: Tensor, size: tuple[int, int]) -> Tensor:
    """N × K × 4 boxes (left, top, right, bottom): the upright box around the moved corners, cut at the image.

    A box that has left the image becomes 0, 0, 0, 0, so that the count stays and nothing has to be waited for.
    """
    left, top, right, bottom = boxes.to(torch.float32).unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], -1)
    count, boxes_each = boxes.shape[:2]
    moved = move_points(corners.view(count, boxes_each * 4, 2), matrices).view(count, boxes_each, 4, 2)
    (left_in, top_in), (right_in, bottom_in) = moved.amin(-2).unbind(-1), moved.amax(-2).unbind(-1)
    cut = torch.stack(
        [left_in.clamp(min=0.0), top_in.clamp(min=0.0), right_in.clamp(max=size[1]), bottom_in.clamp(max=size[0])], -1
    )
    left_over = ((cut[..., 2:] > cut[..., :2]).all(-1) & (right > left) & (bottom > top))[..., None]
    return torch.where(left_over, cut, 0.0).to(boxes.dtype)


def check_points(name: str, points: object, count: int, last: int) -> Tensor:
    """The tensor, if it is one row of points per image."""
    if not isinstance(points, Tensor) or points.dim() != 3 or points.shape[0] != count or points.shape[2] != last:
        found = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise InputError(f"{name} must be a tensor N×K×{last} with N = {count} (pad with zeros), found {found}")
    if not points.dtype.is_floating_point:
        raise InputError(f"{name} has dtype {points.dtype}; moved coordinates are not whole: pass floats")
    return points
