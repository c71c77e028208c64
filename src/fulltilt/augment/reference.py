"""The pass over the pixels in torch: the path on the CPU, and what the kernels are measured against.

The same maths as `kernels/warp.py`, vectorised over images, pixels and channels, and in the same order, but for what is
only cut and scaled: there rows are brought together before columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fulltilt.augment.batch import Batch
from fulltilt.augment.layout import GRAY_BLUE, GRAY_GREEN, GRAY_RED, Column, Ops
from fulltilt.augment.philox import philox
from fulltilt.augment.spec import Fill, Spec

_PIXELS_AT_ONCE = 1 << 22


def gray_means(batch: Batch) -> Tensor:
    """The gray mean of each sample on the [0, 1] scale."""
    means = []
    for images in batch.samples():
        planes = images.to(torch.float64).flatten(2).mean(-1).mean(0) * batch.scale
        weights = torch.tensor([GRAY_RED, GRAY_GREEN, GRAY_BLUE], dtype=torch.float64)
        means.append((planes * weights).sum() if batch.channels == 3 else planes.mean())
    return torch.stack(means).float()


def warp(batch: Batch, rows: Tensor, spec: Spec, norm: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The augmented images, F × C × H × W, and labels, F × H × W."""
    images, labels = [], []
    masks = batch.sample_masks()
    per_frame = spec.out_h * spec.out_w
    for sample, (source, mask) in enumerate(zip(batch.samples(), masks, strict=True)):
        at_once = max(1, _PIXELS_AT_ONCE // per_frame)
        for first in range(0, len(source), at_once):
            part = slice(first, first + at_once)
            x, y = _places(rows[sample], source.shape[-2:], spec)
            images.append(_colours(source[part], x, y, rows[sample], spec, batch.scale, norm, first))
            if mask is not None:
                labels.append(_labels(mask[part], x, y, spec))
    out = torch.cat(images) if images else torch.empty(0, batch.channels, spec.out_h, spec.out_w, dtype=spec.dtype)
    if spec.channels_last:
        out = out.contiguous(memory_format=torch.channels_last)
    return out, (torch.cat(labels) if labels else None)


def _places(row: Tensor, size: torch.Size, spec: Spec) -> tuple[Tensor, Tensor]:
    m = row[:9]
    fx = torch.arange(spec.out_w, dtype=torch.float32)[None, :]
    fy = torch.arange(spec.out_h, dtype=torch.float32)[:, None]
    x, y = (m[0] * fx + m[2]) + m[1] * fy, (m[3] * fx + m[5]) + m[4] * fy
    if Ops.PERSPECTIVE in spec.ops:
        depth = (m[6] * fx + m[8]) + m[7] * fy
        over = 1.0 / torch.where(depth > 0.0, depth, 1.0)
        x, y = torch.where(depth > 0.0, x * over, -1.0e6), torch.where(depth > 0.0, y * over, -1.0e6)
    if spec.fill_mode is Fill.REFLECT and Ops.OUTSIDE in spec.ops:
        x, y = _reflect(x, float(size[1])), _reflect(y, float(size[0]))
    return x, y


def _reflect(x: Tensor, size: float) -> Tensor:
    t = torch.abs(x + 0.5)
    t = t - 2.0 * size * torch.floor(t / (2.0 * size))
    return size - torch.abs(t - size) - 0.5


def _taps(source: Tensor, x: Tensor, y: Tensor, row: Tensor, spec: Spec) -> Tensor:
    """The source at (x, y), which lie inside: bilinear, or a tent as wide as the spread."""
    height, width = source.shape[-2:]
    wide_x, wide_y = 1.0, 1.0
    if Ops.SHRINK in spec.ops:
        wide_x, wide_y = max(float(row[Column.SPREAD_X]), 1.0), max(float(row[Column.SPREAD_Y]), 1.0)
    if Ops.PERSPECTIVE not in spec.ops and row[1] == 0.0 and row[3] == 0.0:  # x is a column's own, and y a row's
        return _mixed(_mixed(source, y[:, 0], wide_y, -2), x[0], wide_x, -1)
    flat = source.flatten(2).float()
    first_x, first_y = torch.floor(x - wide_x) + 1.0, torch.floor(y - wide_y) + 1.0
    total, weight = torch.zeros(()), torch.zeros(())
    for k in range(math.ceil(wide_y * 2.0)):
        line = first_y + k
        wy = torch.clamp(1.0 - torch.abs(line - y) / wide_y, min=0.0) * ((line >= 0) & (line < height))
        for j in range(math.ceil(wide_x * 2.0)):
            column = first_x + j
            wx = torch.clamp(1.0 - torch.abs(column - x) / wide_x, min=0.0) * ((column >= 0) & (column < width))
            at = line.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
            total = total + (wy * wx) * flat[:, :, at]
            weight = weight + wy * wx
    return total / weight


def _mixed(source: Tensor, places: Tensor, wide: float, dim: int) -> Tensor:
    """The source's rows or columns at these places, each of as many as the tent is wide over."""
    size = source.shape[dim]
    along = (-1, 1) if dim == -2 else (-1,)
    first = torch.floor(places - wide) + 1.0
    total, weight = torch.zeros(()), torch.zeros(())
    for k in range(math.ceil(wide * 2.0)):
        at = first + k
        share = torch.clamp(1.0 - torch.abs(at - places) / wide, min=0.0) * ((at >= 0) & (at < size))
        total = total + source.index_select(dim, at.clamp(0, size - 1).long()) * share.view(along)
        weight = weight + share
    return total / weight.view(along)


def _colours(
    source: Tensor,
    x: Tensor,
    y: Tensor,
    row: Tensor,
    spec: Spec,
    scale: float,
    norm: Tensor | None,
    first_frame: int,
) -> Tensor:
    height, width = source.shape[-2:]
    v = _taps(source, x.clamp(0.0, width - 1.0), y.clamp(0.0, height - 1.0), row, spec) * scale
    gain, gray_gain, offset = row[Column.GAIN], row[Column.GRAY_GAIN], row[Column.OFFSET]
    if v.shape[1] == 3:
        shade = offset
        if Ops.GRAY in spec.ops:  # otherwise a NaN in one channel would reach the others
            gray = GRAY_RED * v[:, 0:1] + GRAY_GREEN * v[:, 1:2] + GRAY_BLUE * v[:, 2:3]
            shade = gray_gain * gray + offset
        v = _cut(gain * v + shade)
        if Ops.HUE in spec.ops:
            v = _turn_hue(v, row[Column.HUE])
    else:
        v = _cut((gain + gray_gain) * v + offset)
    v = _tone(v, row, spec.ops)
    if Ops.NOISE in spec.ops:
        v = (v + _noise(v, row, first_frame) * row[Column.NOISE]).clamp(0.0, 1.0)
    if spec.fill_mode is Fill.CONSTANT and Ops.OUTSIDE in spec.ops:
        cover = _cover(x, width, row[Column.SPREAD_X]) * _cover(y, height, row[Column.SPREAD_Y])
        v = spec.fill + (v - spec.fill) * cover
    if norm is not None:
        v = v * norm[:, 0].view(1, -1, 1, 1) + norm[:, 1].view(1, -1, 1, 1)
    if Ops.BLUR in spec.ops and float(row[Column.BLUR]) > 0.0:
        v = _blur(v, float(row[Column.BLUR]))
    if Ops.ERASE in spec.ops:
        left, top, right, bottom = (int(side) for side in row[Column.ERASE : Column.ERASE + 4])
        v[:, :, top:bottom, left:right] = spec.erase_value
    if spec.dtype == torch.uint8:
        return (v * 255.0 + 0.5).clamp(0.0, 255.0).to(torch.uint8)
    return v.to(spec.dtype)


def _cut(v: Tensor) -> Tensor:
    """To [0, 1], and NaN to 0: what a GPU's minimum and maximum do."""
    return torch.nan_to_num(v, nan=0.0).clamp(0.0, 1.0)


def _cover(x: Tensor, size: int, spread: Tensor) -> Tensor:
    return (0.5 - (torch.abs(x - (size - 1) * 0.5) - size * 0.5) / spread).clamp(0.0, 1.0)


def _labels(mask: Tensor, x: Tensor, y: Tensor, spec: Spec) -> Tensor:
    height, width = mask.shape[-2:]
    near_x, near_y = torch.floor(x + 0.5).long(), torch.floor(y + 0.5).long()
    inside = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
    at = near_y.clamp(0, height - 1) * width + near_x.clamp(0, width - 1)
    labels = mask.flatten(1)[:, at]
    if spec.fill_mode is Fill.CONSTANT and Ops.OUTSIDE in spec.ops:
        outside = torch.tensor(spec.mask_fill).to(labels.dtype)
        labels = torch.where(inside, labels, outside)
    return labels


def _turn_hue(v: Tensor, shift: Tensor) -> Tensor:
    r, g, b = v.unbind(1)
    top = v.amax(1)
    span = top - v.amin(1)
    over = torch.where(span > 0.0, 1.0 / torch.where(span > 0.0, span, 1.0), 0.0)
    sector = torch.where(top == g, 2.0 + (b - r) * over, 4.0 + (r - g) * over)
    turned = torch.where(top == r, (g - b) * over, sector) + 6.0 * shift
    k = torch.stack([turned + 5.0, turned + 3.0, turned + 1.0], 1)
    k = k - 6.0 * torch.floor(k * (1.0 / 6.0))
    return top[:, None] - span[:, None] * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)


def _tone(v: Tensor, row: Tensor, ops: Ops) -> Tensor:
    if Ops.GAMMA in ops and float(row[Column.GAMMA]) != 1.0:
        v = v ** row[Column.GAMMA]
    if Ops.SOLARIZE in ops:
        v = torch.where(v >= row[Column.SOLARIZE], 1.0 - v, v)
    if Ops.POSTERIZE in ops and float(row[Column.POSTERIZE]) > 0.0:
        step = row[Column.POSTERIZE]
        v = torch.floor(torch.floor(v * 255.0 + 0.5) / step) * step * (1.0 / 255.0)
    return v


def _noise(v: Tensor, row: Tensor, first_frame: int) -> Tensor:
    """Standard normal numbers shaped like v, from words keyed by the sample and counted by pixel and frame."""
    frames, channels, height, width = v.shape
    words = row[Column.NOISE_KEY : Column.NOISE_KEY + 2].contiguous().view(torch.int32).long() & 0xFFFFFFFF
    shape = (frames, math.ceil(channels / 4), height * width)
    counter = (
        torch.arange(height * width).expand(shape),
        (first_frame + torch.arange(frames))[:, None, None].expand(shape),
        torch.arange(shape[1])[None, :, None].expand(shape),
        torch.zeros(shape, dtype=torch.int64),
    )
    normals = torch.stack([_normal(word) for word in philox(counter, (words[0], words[1]))], 2)
    return normals.flatten(1, 2)[:, :channels].reshape(v.shape)


def _normal(words: Tensor) -> Tensor:
    """The normal quantile of the words as uniform numbers."""
    x = ((words >> 8).float() + 0.5) * 2.0**-23 - 1.0
    return torch.erfinv(x) * math.sqrt(2.0)


def _blur(v: Tensor, sigma: float) -> Tensor:
    taps = torch.arange(-math.ceil(3.0 * sigma), math.ceil(3.0 * sigma) + 1)
    weights = torch.exp(-0.5 * (taps / sigma) ** 2)
    weights = weights / weights.sum()
    for dim in (-1, -2):
        places = torch.arange(v.shape[dim])
        v = sum(
            (w * v.index_select(dim, _mirror(places + k, v.shape[dim])) for k, w in zip(taps, weights, strict=True)),
            start=torch.zeros(()),
        )
    return v


def _mirror(at: Tensor, size: int) -> Tensor:
    at = at.abs()
    at = torch.where(at >= size, 2 * (size - 1) - at, at)
    return at.clamp(0, size - 1)
