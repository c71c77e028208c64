"""Reading the input: bilinear, or a tent as wide as the shrinking asks for.

Interleaved 8-bit images of three channels, which is what decoders give, are read as aligned 32-bit words, two or four
neighbouring pixels at a time: a third of the loads that single bytes would take. A byte v becomes the float
1 + v / 32768 by putting it into the mantissa of 1.0 (one instruction, where a conversion to float occupies a unit with
an eighth of the throughput); weights add up to 1, so the 1 is taken off once, after the sum. Readers of such images
therefore return v / 32768 (`PACKED_UNIT`), exact where one weight is 1 and the others 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

PACKED_UNIT = 32768.0
"""What a packed reader's result is multiplied by to get back to 0 … 255."""

NATIVE = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def tent(position, centre, inverse_width):
    return tl.maximum(1.0 - tl.abs(position - centre) * inverse_width, 0.0)


# --- packed: interleaved bytes as words ----------------------------------------------------------------------------


@triton.jit
def _funnel(high, low, shift):
    """The 32 bits that begin `shift` bits into the pair of words."""
    return (((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> shift.to(tl.uint64)).to(tl.uint32)


@triton.jit
def _byte(word, k: tl.constexpr):
    """1 + byte k of the word / 32768."""
    if NATIVE:  # bytes 3, 2 of 1.0f, then byte k, then 0
        if k == 0:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, 0x3F800000, 0x7604;", "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1
            )
        elif k == 1:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, 0x3F800000, 0x7614;", "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1
            )
        elif k == 2:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, 0x3F800000, 0x7624;", "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            return tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, 0x3F800000, 0x7634;", "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1
            )
    else:
        return ((((word >> (8 * k)) & 255) << 8) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _pair(words, at):
    """Six bytes from byte offset `at`, two pixels. No word is read that holds none of them."""
    word = words + (at >> 2)
    shift = (at & 3) * 8
    w0 = tl.load(word)
    w1 = tl.load(word + 1)
    w2 = tl.load(word + 2, mask=shift == 24, other=0)
    return _funnel(w1, w0, shift), _funnel(w2, w1, shift)


@triton.jit
def _quad(words, at):
    """Twelve bytes from byte offset `at`, four pixels."""
    word = words + (at >> 2)
    shift = (at & 3) * 8
    w0 = tl.load(word)
    w1 = tl.load(word + 1)
    w2 = tl.load(word + 2)
    w3 = tl.load(word + 3, mask=shift != 0, other=0)
    return _funnel(w1, w0, shift), _funnel(w2, w1, shift), _funnel(w3, w2, shift)


@triton.jit
def bilinear_packed(words, lead, x, y, width, height):
    """Four pixels around (x, y), which lies inside; the image is at least two pixels wide."""
    x0 = tl.minimum(x.to(tl.int32), width - 2)
    y0 = tl.minimum(y.to(tl.int32), tl.maximum(height - 2, 0))
    ax = x - x0.to(tl.float32)
    ay = y - y0.to(tl.float32)
    at = y0 * (width * 3) + (x0 * 3 + lead)
    below = tl.where(height > 1, width * 3, 0)
    v0, v1 = _pair(words, at)
    u0, u1 = _pair(words, at + below)
    w11 = ax * ay
    w10 = ay - w11
    w01 = ax - w11
    w00 = 1.0 - ax - w10
    r = w00 * _byte(v0, 0) + w01 * _byte(v0, 3) + w10 * _byte(u0, 0) + w11 * _byte(u0, 3)
    g = w00 * _byte(v0, 1) + w01 * _byte(v1, 0) + w10 * _byte(u0, 1) + w11 * _byte(u1, 0)
    b = w00 * _byte(v0, 2) + w01 * _byte(v1, 1) + w10 * _byte(u0, 2) + w11 * _byte(u1, 1)
    return r - 1.0, g - 1.0, b - 1.0


@triton.jit
def _four(words, at, w0, w1, w2, w3):
    q0, q1, q2 = _quad(words, at)
    r = w0 * _byte(q0, 0) + w1 * _byte(q0, 3) + w2 * _byte(q1, 2) + w3 * _byte(q2, 1)
    g = w0 * _byte(q0, 1) + w1 * _byte(q1, 0) + w2 * _byte(q1, 3) + w3 * _byte(q2, 2)
    b = w0 * _byte(q0, 2) + w1 * _byte(q1, 1) + w2 * _byte(q2, 0) + w3 * _byte(q2, 3)
    return r, g, b


@triton.jit
def tent_packed(words, lead, x, y, width, height, wide_x, wide_y, count_x, count_y):
    """A tent of half-width wide_x × wide_y around (x, y), four taps of a line at a time; at least four pixels wide."""
    inverse_x = 1.0 / wide_x
    inverse_y = 1.0 / wide_y
    # A tap is weighed by where it is, so a window pushed back from the border still weighs each pixel rightly.
    first_x = tl.floor(x - wide_x) + 1.0
    last = (width - 4).to(tl.float32)
    start = clamp(first_x, 0.0, last)
    lines = tl.minimum(count_y, height)
    line = clamp(tl.floor(y - wide_y) + 1.0, 0.0, (height - lines).to(tl.float32))
    at = line.to(tl.int32) * (width * 3) + lead
    w0 = tent(start, x, inverse_x)
    w1 = tent(start + 1.0, x, inverse_x)
    w2 = tent(start + 2.0, x, inverse_x)
    w3 = tent(start + 3.0, x, inverse_x)
    total_x = w0 + w1 + w2 + w3
    total_y = tl.zeros_like(y)
    r = tl.zeros_like(x)
    g = tl.zeros_like(x)
    b = tl.zeros_like(x)
    if count_x <= 4:
        at += start.to(tl.int32) * 3
        for _ in range(0, lines):
            wy = tent(line, y, inverse_y)
            tr, tg, tb = _four(words, at, w0, w1, w2, w3)
            r += wy * tr
            g += wy * tg
            b += wy * tb
            total_y += wy
            line += 1.0
            at += width * 3
    else:  # shrinking to less than half: more windows in each line
        for k in range(0, lines):
            wy = tent(line, y, inverse_y)
            tr, tg, tb = _four(words, at + start.to(tl.int32) * 3, w0, w1, w2, w3)
            r += wy * tr
            g += wy * tg
            b += wy * tb
            for j in range(4, count_x, 4):
                begin = clamp(first_x + j, 0.0, last)
                fresh = tl.maximum(first_x + j, start + 4.0)  # what the windows before have not counted
                v0 = tl.where(begin >= fresh, tent(begin, x, inverse_x), 0.0)
                v1 = tl.where(begin + 1.0 >= fresh, tent(begin + 1.0, x, inverse_x), 0.0)
                v2 = tl.where(begin + 2.0 >= fresh, tent(begin + 2.0, x, inverse_x), 0.0)
                v3 = tl.where(begin + 3.0 >= fresh, tent(begin + 3.0, x, inverse_x), 0.0)
                if k == 0:
                    total_x += v0 + v1 + v2 + v3
                tr, tg, tb = _four(words, at + begin.to(tl.int32) * 3, v0, v1, v2, v3)
                r += wy * tr
                g += wy * tg
                b += wy * tb
            total_y += wy
            line += 1.0
            at += width * 3
    norm = 1.0 / (total_x * total_y)
    return r * norm - 1.0, g * norm - 1.0, b * norm - 1.0


# --- anything else: one channel at a time, any strides, any type ---------------------------------------------------


@triton.jit
def bilinear(plane, x, y, width, height, stride_y, stride_x):
    x0 = x.to(tl.int32)
    y0 = y.to(tl.int32)
    ax = x - x0.to(tl.float32)
    ay = y - y0.to(tl.float32)
    right = tl.where(x0 + 1 < width, stride_x, 0)
    below = tl.where(y0 + 1 < height, stride_y, 0)
    at = plane + (y0 * stride_y + x0 * stride_x)
    v00 = tl.load(at).to(tl.float32)
    v01 = tl.load(at + right).to(tl.float32)
    v10 = tl.load(at + below).to(tl.float32)
    v11 = tl.load(at + (below + right)).to(tl.float32)
    w11 = ax * ay
    w10 = ay - w11
    w01 = ax - w11
    return (1.0 - ax - w10) * v00 + w01 * v01 + w10 * v10 + w11 * v11


@triton.jit
def tent_any(plane, x, y, width, height, stride_y, stride_x, wide_x, wide_y, count_x, count_y):
    inverse_x = 1.0 / wide_x
    inverse_y = 1.0 / wide_y
    first_x = tl.floor(x - wide_x) + 1.0
    first_y = tl.floor(y - wide_y) + 1.0
    width_f = width.to(tl.float32)
    height_f = height.to(tl.float32)
    total = tl.zeros_like(x)
    weight = tl.zeros_like(x)
    for k in range(0, count_y):
        line = first_y + k
        wy = tl.where((line >= 0.0) & (line < height_f), tent(line, y, inverse_y), 0.0)
        at = clamp(line, 0.0, height_f - 1.0).to(tl.int32) * stride_y
        for j in range(0, count_x):
            column = first_x + j
            w = tl.where((column >= 0.0) & (column < width_f), wy * tent(column, x, inverse_x), 0.0)
            from_left = clamp(column, 0.0, width_f - 1.0).to(tl.int32) * stride_x
            total += w * tl.load(plane + (at + from_left)).to(tl.float32)
            weight += w
    return total / weight
