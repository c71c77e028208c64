"""What happens to a value between reading and writing it; everything on the [0, 1] scale."""

from __future__ import annotations

import triton
import triton.language as tl

from fulltilt.augment import layout
from fulltilt.augment.kernels.taps import clamp


@triton.jit
def turn_hue(r, g, b, shift):
    """The hue turned by `shift` of the circle, as HSV does it."""
    top = tl.maximum(tl.maximum(r, g), b)
    span = top - tl.minimum(tl.minimum(r, g), b)
    over = tl.where(span > 0.0, 1.0 / tl.where(span > 0.0, span, 1.0), 0.0)
    sector = tl.where(top == r, (g - b) * over, tl.where(top == g, 2.0 + (b - r) * over, 4.0 + (r - g) * over))
    turned = sector + 6.0 * shift
    return _of_hue(turned + 5.0, top, span), _of_hue(turned + 3.0, top, span), _of_hue(turned + 1.0, top, span)


@triton.jit
def _of_hue(k, top, span):
    k = k - 6.0 * tl.floor(k * (1.0 / 6.0))
    return top - span * clamp(tl.minimum(k, 4.0 - k), 0.0, 1.0)


@triton.jit
def _tone(v, row, OPS: tl.constexpr):
    """Operations on single values that are not linear."""
    if (OPS & layout.Ops.GAMMA) != 0:
        gamma = tl.load(row + layout.Column.GAMMA)
        raised = tl.exp2(gamma * tl.log2(tl.maximum(v, 1.0e-30)))
        v = tl.where(gamma == 1.0, v, tl.where(v > 0.0, raised, 0.0))
    if (OPS & layout.Ops.SOLARIZE) != 0:
        v = tl.where(v >= tl.load(row + layout.Column.SOLARIZE), 1.0 - v, v)
    if (OPS & layout.Ops.POSTERIZE) != 0:
        step = tl.load(row + layout.Column.POSTERIZE)
        # Steps are powers of two, so dividing by one is exact.
        level = tl.floor(tl.floor(v * 255.0 + 0.5) * (1.0 / tl.maximum(step, 1.0))) * step
        v = tl.where(step > 0.0, level * (1.0 / 255.0), v)
    return v


@triton.jit
def normals(row, pixel, frame, block):
    """Four standard normal numbers for each pixel, from the sample's own key."""
    key0 = tl.load(row + layout.Column.NOISE_KEY).to(tl.uint32, bitcast=True).to(tl.uint64)
    key1 = tl.load(row + layout.Column.NOISE_KEY + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    zero = tl.zeros_like(pixel)
    a, b, c, d = tl.philox((key1 << 32) | key0, pixel, zero + frame, zero + block, zero)
    n0, n1 = _two_normals(a, b)
    n2, n3 = _two_normals(c, d)
    return n0, n1, n2, n3


@triton.jit
def _two_normals(a, b):
    u = ((a >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # never 0
    angle = (b >> 8).to(tl.float32) * (6.283185307179586 * 5.9604644775390625e-08)
    radius = tl.sqrt(-2.0 * tl.log(u))
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def finish(
    v,
    noise,
    row,
    channel: tl.constexpr,
    cover,
    erased,
    norm,
    fill,
    erase_value,
    OPS: tl.constexpr,
    COVERED: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Tone, noise, what lies outside, normalisation, erasing: one channel on its way out."""
    v = _tone(v, row, OPS)
    if (OPS & layout.Ops.NOISE) != 0:
        v = clamp(v + noise * tl.load(row + layout.Column.NOISE), 0.0, 1.0)
    if COVERED:
        v = fill + (v - fill) * cover
    if NORMALIZE:
        v = v * tl.load(norm + 2 * channel) + tl.load(norm + 2 * channel + 1)
    if (OPS & layout.Ops.ERASE) != 0:
        v = tl.where(erased, erase_value, v)
    return v


@triton.jit
def as_output(v, dst):
    """In the type that `dst` points to."""
    if dst.dtype.element_ty == tl.uint8:
        return clamp(v * 255.0 + 0.5, 0.0, 255.0).to(tl.uint8)
    return v.to(dst.dtype.element_ty)
