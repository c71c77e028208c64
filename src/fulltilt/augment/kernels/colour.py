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
    return _normal(a), _normal(b), _normal(c), _normal(d)


@triton.jit
def _normal(word):
    """The normal quantile of a uniform number, by Giles' polynomials for the inverse error function (2010)."""
    x = ((word >> 8).to(tl.float32) + 0.5) * 1.1920928955078125e-07 - 1.0  # in (−1, 1), never at the ends
    w = -tl.log((1.0 - x) * (1.0 + x))
    n = w - 2.5
    near = 2.81022636e-08
    near = 3.43273939e-07 + near * n
    near = -3.5233877e-06 + near * n
    near = -4.39150654e-06 + near * n
    near = 0.00021858087 + near * n
    near = -0.00125372503 + near * n
    near = -0.00417768164 + near * n
    near = 0.246640727 + near * n
    near = 1.50140941 + near * n
    f = tl.sqrt(w) - 3.0
    far = -0.000200214257
    far = 0.000100950558 + far * f
    far = 0.00134934322 + far * f
    far = -0.00367342844 + far * f
    far = 0.00573950773 + far * f
    far = -0.0076224613 + far * f
    far = 0.00943887047 + far * f
    far = 1.00167406 + far * f
    far = 2.83297682 + far * f
    return tl.where(w < 5.0, near, far) * x * 1.4142135623730951


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
