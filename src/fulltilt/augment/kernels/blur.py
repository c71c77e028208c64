"""The passes that run only when asked for: a Gaussian blur along one axis, and the gray sums behind a mean pivot."""

from __future__ import annotations

import triton
import triton.language as tl

from fulltilt.augment import layout
from fulltilt.augment.kernels.colour import as_output


@triton.jit
def _mirror(at, size):
    """A place at most one size beyond the border, mirrored at the centre of the first or the last pixel."""
    at = tl.where(at < 0, -at, at)
    at = tl.where(at >= size, 2 * (size - 1) - at, at)
    return tl.minimum(tl.maximum(at, 0), size - 1)


@triton.jit(
    do_not_specialize=[
        "out_h",
        "out_w",
        "stride_n",
        "stride_c",
        "stride_y",
        "stride_x",
        "frames",
        "first",
        "erase_value",
    ],
    do_not_specialize_on_alignment=["dst", "src", "rows"],
)
def blur(
    dst,
    src,
    rows,
    out_h,
    out_w,
    stride_n: tl.int64,
    stride_c,
    stride_y,
    stride_x,
    frames,
    first,
    erase_value,
    CHANNELS: tl.constexpr,
    ALONG_X: tl.constexpr,
    ERASE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    REVISION: tl.constexpr,
):
    """One axis of the blur; `src` and `dst` have the same strides. Samples that are not blurred are left alone."""
    frame = first + tl.program_id(2)
    row = rows + (frame // frames) * layout.ROW
    lane = tl.arange(0, BLOCK_H * BLOCK_W)
    ox = tl.program_id(0) * BLOCK_W + lane % BLOCK_W
    oy = tl.program_id(1) * BLOCK_H + lane // BLOCK_W
    live = (ox < out_w) & (oy < out_h)
    image = frame.to(tl.int64) * stride_n
    sigma = tl.load(row + layout.Column.BLUR)
    if sigma == 0.0:
        return
    radius = tl.ceil(3.0 * sigma).to(tl.int32)
    over = -0.5 / tl.maximum(sigma * sigma, 1.0e-12)
    total = 1.0
    for k in range(1, radius + 1):
        total += 2.0 * tl.exp(over * (k * k))
    if ALONG_X:
        line = image + oy * stride_y
    else:
        line = image + ox * stride_x
    erased = live
    if ERASE:
        fx = ox.to(tl.float32)
        fy = oy.to(tl.float32)
        erased = (fx >= tl.load(row + layout.Column.ERASE)) & (fx < tl.load(row + layout.Column.ERASE + 2))
        erased &= fy >= tl.load(row + layout.Column.ERASE + 1)
        erased &= fy < tl.load(row + layout.Column.ERASE + 3)
    out = dst + image + (oy * stride_y + ox * stride_x)
    for c in tl.static_range(0, CHANNELS, 3):  # three channels share a walk over the taps
        r = tl.zeros((BLOCK_H * BLOCK_W,), tl.float32)
        g = r
        b = r
        for k in range(-radius, radius + 1):
            if ALONG_X:
                at = src + line + _mirror(ox + k, out_w) * stride_x + c * stride_c
            else:
                at = src + line + _mirror(oy + k, out_h) * stride_y + c * stride_c
            weight = tl.exp(over * (k * k)) * (1.0 / total)
            r += weight * _get(at, live)
            if c + 1 < CHANNELS:
                g += weight * _get(at + stride_c, live)
            if c + 2 < CHANNELS:
                b += weight * _get(at + 2 * stride_c, live)
        _put(out + c * stride_c, r, erased, erase_value, live, ERASE)
        if c + 1 < CHANNELS:
            _put(out + (c + 1) * stride_c, g, erased, erase_value, live, ERASE)
        if c + 2 < CHANNELS:
            _put(out + (c + 2) * stride_c, b, erased, erase_value, live, ERASE)


@triton.jit
def _get(at, live):
    value = tl.load(at, mask=live, other=0).to(tl.float32)
    if at.dtype.element_ty == tl.uint8:
        value = value * (1.0 / 255.0)
    return value


@triton.jit
def _put(at, value, erased, erase_value, live, ERASE: tl.constexpr):
    if ERASE:
        value = tl.where(erased, erase_value, value)
    tl.store(at, as_output(value, at), mask=live)


@triton.jit(
    do_not_specialize=["height", "width", "stride_n", "stride_c", "stride_y", "stride_x", "frames", "chunks", "scale"],
    do_not_specialize_on_alignment=["sums", "src", "offsets", "sizes"],
)
def gray_sums(
    sums,
    src,
    offsets,
    sizes,
    height,
    width,
    stride_n: tl.int64,
    stride_c,
    stride_y,
    stride_x,
    frames,
    chunks,
    scale,
    CHANNELS: tl.constexpr,
    RAGGED: tl.constexpr,
    BLOCK: tl.constexpr,
    REVISION: tl.constexpr,
):
    """Part `chunk` of a sample's gray mean: the parts of a sample add up to the mean, always in the same order."""
    sample = tl.program_id(0)
    chunk = tl.program_id(1)
    if RAGGED:
        height = tl.load(sizes + 2 * sample)
        width = tl.load(sizes + 2 * sample + 1)
        stride_y = width * CHANNELS if RAGGED == 1 else width
        stride_c = 1 if RAGGED == 1 else height * width
        image = src + tl.load(offsets + sample)
    else:
        image = src + sample.to(tl.int64) * frames * stride_n
    pixels = height * width
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(0, frames):
        for start in range(chunk * BLOCK, pixels, chunks * BLOCK):
            at = start + tl.arange(0, BLOCK)
            live = at < pixels
            place = image + ((at // width) * stride_y + (at % width) * stride_x)
            if CHANNELS == 3:
                total += layout.GRAY_RED * tl.load(place, mask=live, other=0).to(tl.float32)
                total += layout.GRAY_GREEN * tl.load(place + stride_c, mask=live, other=0).to(tl.float32)
                total += layout.GRAY_BLUE * tl.load(place + 2 * stride_c, mask=live, other=0).to(tl.float32)
            else:
                for c in tl.static_range(CHANNELS):
                    total += (1.0 / CHANNELS) * tl.load(place + c * stride_c, mask=live, other=0).to(tl.float32)
        image += stride_n
    mean = tl.sum(total, 0) * scale / (pixels.to(tl.float32) * frames)
    tl.store(sums + sample * chunks + chunk, mean)
