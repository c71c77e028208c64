"""Draws: (seed, epoch, sample index) → the row of numbers that says what happens to one sample.

    generator ─► uniforms ─► the settings' ranges ─► a box of the input, a matrix, colour factors ─► row

This is the torch form: the path on the CPU, and the reference for the kernel in `kernels/draw.py`, which computes the
same in the same order. Where a copy has to be exact (flips, quarter turns, whole-pixel crops, no resize) every number
on the way is a multiple of one half, and float32 keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fulltilt.augment.layout import CROP_ATTEMPTS, ROW, UNIFORMS, Column, Ops, Slot, Uniform
from fulltilt.augment.philox import sample_words, to_uniform

Matrix = list[list[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What the draws have to know of the batch: sizes in and out."""

    sizes: Tensor
    """N × 2: height and width of each input."""
    out_h: int
    out_w: int
    crop_padding: int = 0
    eval_crop: float = 0.0
    """Share of the short side that `eval()` mode shows, in the output's shape; 0 shows the whole image."""


def draw_rows(
    *,
    ops: Ops,
    values: Tensor,
    seed: int,
    epoch: int,
    index: Tensor,
    frame: Frame,
    means: Tensor | None = None,
) -> Tensor:
    """One row per sample. `values` is the settings vector in force, `means` the gray means of the inputs."""
    words = sample_words(seed, epoch, index, UNIFORMS)
    draw = _Draw(ops=ops, values=values, u=to_uniform(words), frame=frame)
    rows = draw.rows(means)
    key = words[:, Uniform.NOISE_KEY : Uniform.NOISE_KEY + 2]
    rows[:, Column.NOISE_KEY : Column.NOISE_KEY + 2] = (key - ((key >> 31) << 32)).to(torch.int32).view(torch.float32)
    return rows


@dataclass(frozen=True, kw_only=True)
class _Draw:
    ops: Ops
    values: Tensor
    u: Tensor
    frame: Frame

    def between(self, low: Slot, high: Slot, purpose: int) -> Tensor:
        return self.values[low] + (self.values[high] - self.values[low]) * self.u[:, purpose]

    def either_side(self, reach: Slot, purpose: Uniform) -> Tensor:
        return self.values[reach] * (2.0 * self.u[:, purpose] - 1.0)

    def happens(self, probability: Slot, purpose: Uniform) -> Tensor:
        return self.u[:, purpose] < self.values[probability]

    def rows(self, means: Tensor | None) -> Tensor:
        ops, values = self.ops, self.values
        rows = self.placed(self.turned(), self.box())
        rows[:, Column.GAIN] = 1.0
        rows[:, Column.GAMMA] = 1.0
        rows[:, Column.SOLARIZE] = 2.0
        if Ops.COLOUR in ops:
            rows[:, Column.GAIN], rows[:, Column.GRAY_GAIN], rows[:, Column.OFFSET] = self.colour(means)
        if Ops.HUE in ops:
            rows[:, Column.HUE] = self.between(Slot.HUE_LO, Slot.HUE_HI, Uniform.HUE)
        if Ops.GAMMA in ops:
            rows[:, Column.GAMMA] = self.between(Slot.GAMMA_LO, Slot.GAMMA_HI, Uniform.GAMMA)
        if Ops.SOLARIZE in ops:
            solarized = self.happens(Slot.SOLARIZE_PROB, Uniform.SOLARIZE)
            rows[:, Column.SOLARIZE] = torch.where(solarized, values[Slot.SOLARIZE_THRESHOLD], 2.0)
        if Ops.POSTERIZE in ops:
            step = torch.exp2(8.0 - torch.floor(values[Slot.POSTERIZE_BITS] + 0.5))
            rows[:, Column.POSTERIZE] = torch.where(self.happens(Slot.POSTERIZE_PROB, Uniform.POSTERIZE), step, 0.0)
        if Ops.NOISE in ops:
            rows[:, Column.NOISE] = values[Slot.NOISE_STD]
        if Ops.ERASE in ops:
            rows[:, Column.ERASE : Column.ERASE + 4] = self.erased()
        if Ops.BLUR in ops:
            sigma = self.between(Slot.BLUR_SIGMA_LO, Slot.BLUR_SIGMA_HI, Uniform.BLUR)
            rows[:, Column.BLUR] = torch.where(self.happens(Slot.BLUR_PROB, Uniform.BLUR_IF), sigma, 0.0)
        return rows

    def box(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The part of the input that is shown: left, top, width, height."""
        height, width = self.frame.sizes[:, 0].float(), self.frame.sizes[:, 1].float()
        if Ops.CENTRE in self.ops:
            return self.centred(height, width)
        if Ops.RANDOM_CROP in self.ops:
            return self.cropped(height, width)
        if Ops.RESIZED_CROP in self.ops:
            return self.resized_crop(height, width)
        return torch.zeros_like(width), torch.zeros_like(height), width, height

    def centred(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        out_h, out_w = float(self.frame.out_h), float(self.frame.out_w)
        box_w, box_h = width, height
        if Ops.RANDOM_CROP in self.ops:
            box_w, box_h = torch.full_like(width, out_w), torch.full_like(height, out_h)
        elif self.frame.eval_crop > 0.0:
            zoom = torch.minimum(width / out_w, height / out_h) * self.frame.eval_crop
            box_w, box_h = zoom * out_w, zoom * out_h
        return torch.floor((width - box_w) * 0.5), torch.floor((height - box_h) * 0.5), box_w, box_h

    def cropped(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pad, out_h, out_w = float(self.frame.crop_padding), float(self.frame.out_h), float(self.frame.out_w)
        room_x, room_y = width + (2.0 * pad - out_w), height + (2.0 * pad - out_h)
        left = torch.floor(self.u[:, Uniform.CROP_X] * (room_x + 1.0)) - pad
        top = torch.floor(self.u[:, Uniform.CROP_Y] * (room_y + 1.0)) - pad
        # An image smaller than the crop is centred; the rest is fill.
        left = torch.where(room_x < 0.0, torch.floor((width - out_w) * 0.5), left)
        top = torch.where(room_y < 0.0, torch.floor((height - out_h) * 0.5), top)
        return left, top, torch.full_like(width, out_w), torch.full_like(height, out_h)

    def resized_crop(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """torchvision's rule: the first of ten attempts that fits, or else the largest centred box of allowed shape."""
        values = self.values
        low, high = torch.exp(values[Slot.LOG_RATIO_LO]), torch.exp(values[Slot.LOG_RATIO_HI])
        box_w = torch.minimum(width, torch.floor(height * high + 0.5))
        box_h = torch.minimum(height, torch.floor(width / low + 0.5))
        found = torch.zeros_like(width, dtype=torch.bool)
        for attempt in range(CROP_ATTEMPTS):
            share = self.between(Slot.AREA_LO, Slot.AREA_HI, Uniform.CROP + 2 * attempt)
            ratio = torch.exp(self.between(Slot.LOG_RATIO_LO, Slot.LOG_RATIO_HI, Uniform.CROP + 2 * attempt + 1))
            area = height * width * share
            w, h = torch.floor(torch.sqrt(area * ratio) + 0.5), torch.floor(torch.sqrt(area / ratio) + 0.5)
            fits = ~found & (w >= 1.0) & (h >= 1.0) & (w <= width) & (h <= height)
            box_w, box_h, found = torch.where(fits, w, box_w), torch.where(fits, h, box_h), found | fits
        room_x, room_y = width - box_w, height - box_h
        left = torch.where(found, torch.floor(self.u[:, Uniform.CROP_X] * (room_x + 1.0)), torch.floor(room_x * 0.5))
        top = torch.where(found, torch.floor(self.u[:, Uniform.CROP_Y] * (room_y + 1.0)), torch.floor(room_y * 0.5))
        return left, top, box_w, box_h

    def turned(self) -> Matrix:
        """Output → input about the centres, both in output pixels: what undoes perspective, then affine, then turns."""
        one, zero = torch.ones_like(self.u[:, 0]), torch.zeros_like(self.u[:, 0])
        m = [[one, zero, zero], [zero, one, zero], [zero, zero, one]]
        if Ops.TURN in self.ops:
            flip_x = torch.where(self.happens(Slot.HORIZONTAL_FLIP_PROB, Uniform.HORIZONTAL_FLIP), -1.0, 1.0)
            flip_y = torch.where(self.happens(Slot.VERTICAL_FLIP_PROB, Uniform.VERTICAL_FLIP), -1.0, 1.0)
            square = self.frame.out_h == self.frame.out_w
            turns = torch.floor(self.u[:, Uniform.TURNS] * 3.0) + 1.0 if square else 2.0 * one
            turns = torch.where(self.happens(Slot.QUARTER_TURN_PROB, Uniform.QUARTER_TURN), turns, 0.0)
            cos = torch.where(turns == 0.0, 1.0, torch.where(turns == 2.0, -1.0, 0.0))
            sin = torch.where(turns == 1.0, 1.0, torch.where(turns == 3.0, -1.0, 0.0))
            m = [[flip_x * cos, flip_x * sin, zero], [-flip_y * sin, flip_y * cos, zero], [zero, zero, one]]
        if Ops.AFFINE in self.ops:
            m = _times(m, self.affine())
        if Ops.PERSPECTIVE in self.ops:
            m = _times(m, self.perspective())
        return m

    def affine(self) -> Matrix:
        """The inverse of: shear, rotate (clockwise on the screen), scale, then shift."""
        angle = self.between(Slot.ROTATION_LO, Slot.ROTATION_HI, Uniform.ROTATION)
        scale = self.between(Slot.SCALE_LO, Slot.SCALE_HI, Uniform.SCALE)
        shear_x = self.either_side(Slot.SHEAR_X, Uniform.SHEAR_X)
        shear_y = self.either_side(Slot.SHEAR_Y, Uniform.SHEAR_Y)
        shift_x = self.either_side(Slot.TRANSLATE_X, Uniform.TRANSLATE_X) * float(self.frame.out_w)
        shift_y = self.either_side(Slot.TRANSLATE_Y, Uniform.TRANSLATE_Y) * float(self.frame.out_h)
        tan = torch.sin(shear_x) / torch.cos(shear_x)
        cos = torch.cos(angle - shear_y) / torch.cos(shear_y)
        sin = torch.sin(angle - shear_y) / torch.cos(shear_y)
        # Forward: scale · [[cos, b], [sin, d]] with determinant scale², so the inverse swaps and negates.
        a, b = (torch.cos(angle) - sin * tan) / scale, (torch.sin(angle) + cos * tan) / scale
        c, d = -sin / scale, cos / scale
        one, zero = torch.ones_like(a), torch.zeros_like(a)
        return [[a, b, -(a * shift_x + b * shift_y)], [c, d, -(c * shift_x + d * shift_y)], [zero, zero, one]]

    def perspective(self) -> Matrix:
        """Takes the corners, each moved inwards, back to where they were."""
        happens = self.happens(Slot.PERSPECTIVE_PROB, Uniform.PERSPECTIVE_IF)
        reach = torch.where(happens, self.values[Slot.PERSPECTIVE], 0.0)
        move = [reach * self.u[:, Uniform.PERSPECTIVE + k] for k in range(8)]
        x0, y0, x1, y1 = move[0] - 1.0, move[1] - 1.0, 1.0 - move[2], move[3] - 1.0
        x2, y2, x3, y3 = 1.0 - move[4], 1.0 - move[5], move[6] - 1.0, 1.0 - move[7]
        # Unit square → corners, in closed form (Heckbert, 1989) …
        dx1, dx2, sx = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
        dy1, dy2, sy = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
        den = dx1 * dy2 - dx2 * dy1
        g, h = (sx * dy2 - dx2 * sy) / den, (dx1 * sy - sx * dy1) / den
        a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
        d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
        # … its adjugate goes back, to [-1, 1] after doubling, and from and to pixels by half the size.
        bottom = [d * h - e * g, b * g - a * h, a * e - b * d]
        along_x = [2.0 * (e - f * h) - bottom[0], 2.0 * (c * h - b) - bottom[1], 2.0 * (b * f - c * e) - bottom[2]]
        along_y = [2.0 * (f * g - d) - bottom[0], 2.0 * (a - c * g) - bottom[1], 2.0 * (c * d - a * f) - bottom[2]]
        half_x, half_y = max((self.frame.out_w - 1) / 2, 0.5), max((self.frame.out_h - 1) / 2, 0.5)
        unit = bottom[2]
        back = [
            [along_x[0] / unit, along_x[1] / unit * (half_x / half_y), along_x[2] / unit * half_x],
            [along_y[0] / unit * (half_y / half_x), along_y[1] / unit, along_y[2] / unit * half_y],
            [bottom[0] / unit / half_x, bottom[1] / unit / half_y, torch.ones_like(unit)],
        ]
        return [
            [torch.where(happens, back[j][k], 1.0 if j == k else 0.0) for k in range(3)] for j in range(3)
        ]  # a sample that stays straight stays exact

    def placed(self, m: Matrix, box: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Empty rows with the whole way written in: centre, undo by m, scale to the box, move to the box's centre."""
        left, top, box_w, box_h = box
        rows = box_w.new_zeros(len(box_w), ROW)
        centre_x, centre_y = (self.frame.out_w - 1) / 2, (self.frame.out_h - 1) / 2
        along = (
            (box_w / float(self.frame.out_w), left + (box_w - 1.0) * 0.5),
            (box_h / float(self.frame.out_h), top + (box_h - 1.0) * 0.5),
        )
        for j, (ratio, to) in enumerate(along):
            p, q, r = (ratio * m[j][k] + to * m[2][k] for k in range(3))
            rows[:, 3 * j], rows[:, 3 * j + 1] = p, q
            rows[:, 3 * j + 2] = r - (p * centre_x + q * centre_y)
            x, y = ratio * m[j][0], ratio * m[j][1]
            rows[:, Column.SPREAD_X + j] = torch.sqrt(x * x + y * y) if Ops.ANTIALIAS in self.ops else 1.0
        p, q, r = m[2]
        rows[:, 6], rows[:, 7], rows[:, 8] = p, q, r - (p * centre_x + q * centre_y)
        return rows

    def colour(self, means: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Brightness, contrast, saturation, gray and inversion as gain, gray gain and offset."""
        brightness = self.between(Slot.BRIGHTNESS_LO, Slot.BRIGHTNESS_HI, Uniform.BRIGHTNESS)
        contrast = self.between(Slot.CONTRAST_LO, Slot.CONTRAST_HI, Uniform.CONTRAST)
        saturation = torch.ones_like(contrast)
        if Ops.GRAY in self.ops:
            saturation = self.between(Slot.SATURATION_LO, Slot.SATURATION_HI, Uniform.SATURATION)
            saturation = torch.where(self.happens(Slot.GRAY_PROB, Uniform.GRAY), 0.0, saturation)
        pivot = self.values[Slot.CONTRAST_PIVOT] if means is None else brightness * means
        gain, offset = brightness * contrast, (1.0 - contrast) * pivot
        inverted = self.happens(Slot.INVERT_PROB, Uniform.INVERT)
        gain, offset = torch.where(inverted, -gain, gain), torch.where(inverted, 1.0 - offset, offset)
        return gain * saturation, gain * (1.0 - saturation), offset

    def erased(self) -> Tensor:
        out_h, out_w = float(self.frame.out_h), float(self.frame.out_w)
        area = self.between(Slot.ERASE_AREA_LO, Slot.ERASE_AREA_HI, Uniform.ERASE_AREA) * (out_h * out_w)
        ratio = torch.exp(self.between(Slot.ERASE_LOG_RATIO_LO, Slot.ERASE_LOG_RATIO_HI, Uniform.ERASE_RATIO))
        h = torch.floor(torch.sqrt(area * ratio) + 0.5).clamp(max=out_h)
        w = torch.floor(torch.sqrt(area / ratio) + 0.5).clamp(max=out_w)
        left = torch.floor(self.u[:, Uniform.ERASE_X] * (out_w - w + 1.0))
        top = torch.floor(self.u[:, Uniform.ERASE_Y] * (out_h - h + 1.0))
        boxes = torch.stack([left, top, left + w, top + h], -1)
        return torch.where(self.happens(Slot.ERASE_PROB, Uniform.ERASE_IF)[:, None], boxes, 0.0)


def _times(m: Matrix, n: Matrix) -> Matrix:
    """m · n for an affine m."""
    top = [[m[j][0] * n[0][k] + m[j][1] * n[1][k] + m[j][2] * n[2][k] for k in range(3)] for j in range(2)]
    return [*top, n[2]]
