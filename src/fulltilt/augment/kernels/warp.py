"""The one pass over the pixels: read the input through the sample's matrix, colour it, write the output once.

    tile of output pixels ─► places in the input ─► taps ─► colour ─► normalise ─► store
                                              └──► nearest ─► mask

The torch form is `fulltilt.augment.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fulltilt.augment import layout
from fulltilt.augment.kernels.colour import as_output, finish, normals, turn_hue
from fulltilt.augment.kernels.taps import bilinear, bilinear_packed, clamp, tent_any, tent_packed

# What lies beyond the border.
CONSTANT, REFLECT, EDGE = 0, 1, 2

# How interleaved channels are written: one by one, or, of 16-bit outputs, two pixels as three 32-bit words: half as
# many stores. What binds is the L2 cache, where a store that fills a sector in part costs as much as a full one.
STRIDED, TWO_PIXELS = 0, 1


@triton.jit
def _reflect(x, size):
    """Mirrored at the outer edges of the first and the last pixel."""
    t = tl.abs(x + 0.5)
    t = t - 2.0 * size * tl.floor(t / (2.0 * size))
    return size - tl.abs(t - size) - 0.5


@triton.jit
def _places(row, fx, fy, width_f, height_f, OPS: tl.constexpr, FILL: tl.constexpr):
    """Where output pixels lie in the input."""
    x = (tl.load(row) * fx + tl.load(row + 2)) + tl.load(row + 1) * fy
    y = (tl.load(row + 3) * fx + tl.load(row + 5)) + tl.load(row + 4) * fy
    if (OPS & layout.Ops.PERSPECTIVE) != 0:
        depth = (tl.load(row + 6) * fx + tl.load(row + 8)) + tl.load(row + 7) * fy
        seen = depth > 0.0  # beyond the horizon there is nothing
        over = 1.0 / tl.where(seen, depth, 1.0)
        x = tl.where(seen, x * over, -1.0e6)
        y = tl.where(seen, y * over, -1.0e6)
    if FILL == 1 and (OPS & layout.Ops.OUTSIDE) != 0:
        x = _reflect(x, width_f)
        y = _reflect(y, height_f)
    return x, y


@triton.jit
def _cover(x, size, spread):
    """How much of an output pixel lies on the image: 1 inside, 0 outside, soft over one output pixel."""
    return clamp(0.5 - (tl.abs(x - (size - 1.0) * 0.5) - size * 0.5) * (1.0 / spread), 0.0, 1.0)


@triton.jit
def _erased(row, fx, fy, OPS: tl.constexpr):
    """Inside the erased box."""
    right = tl.load(row + layout.Column.ERASE + 2)
    if (OPS & layout.Ops.BLUR) != 0:  # a sample that is blurred afterwards is erased after that
        right = tl.where(tl.load(row + layout.Column.BLUR) == 0.0, right, 0.0)
    erased = (fx >= tl.load(row + layout.Column.ERASE)) & (fx < right)
    erased &= fy >= tl.load(row + layout.Column.ERASE + 1)
    return erased & (fy < tl.load(row + layout.Column.ERASE + 3))


@triton.jit
def _channel(plane, x, y, width, height, stride_y, stride_x, spread_x, spread_y, OPS: tl.constexpr):
    if (OPS & layout.Ops.SHRINK) != 0:
        wide_x = tl.maximum(spread_x, 1.0)
        wide_y = tl.maximum(spread_y, 1.0)
        count_x = tl.ceil(wide_x * 2.0).to(tl.int32)
        count_y = tl.ceil(wide_y * 2.0).to(tl.int32)
        return tent_any(plane, x, y, width, height, stride_y, stride_x, wide_x, wide_y, count_x, count_y)
    else:
        return bilinear(plane, x, y, width, height, stride_y, stride_x)


@triton.jit
def _three_channels(
    image,
    x,
    y,
    width,
    height,
    stride_c,
    stride_y,
    stride_x,
    spread_x,
    spread_y,
    OPS: tl.constexpr,
    PACKED: tl.constexpr,
):
    if PACKED:
        address = image.to(tl.uint64)
        lead = (address & 3).to(tl.int32)
        words = (address - (address & 3)).to(tl.pointer_type(tl.uint32))
        if (OPS & layout.Ops.SHRINK) != 0:
            wide_x = tl.maximum(spread_x, 1.0)
            wide_y = tl.maximum(spread_y, 1.0)
            count_x = tl.ceil(wide_x * 2.0).to(tl.int32)
            count_y = tl.ceil(wide_y * 2.0).to(tl.int32)
            if (count_x <= 2) & (count_y <= 2):
                r, g, b = bilinear_packed(words, lead, x, y, width, height)
            else:
                r, g, b = tent_packed(words, lead, x, y, width, height, wide_x, wide_y, count_x, count_y)
        else:
            r, g, b = bilinear_packed(words, lead, x, y, width, height)
    else:
        r = _channel(image, x, y, width, height, stride_y, stride_x, spread_x, spread_y, OPS)
        g = _channel(image + stride_c, x, y, width, height, stride_y, stride_x, spread_x, spread_y, OPS)
        b = _channel(image + 2 * stride_c, x, y, width, height, stride_y, stride_x, spread_x, spread_y, OPS)
    return r, g, b


@triton.jit
def _pixel(
    image,
    row,
    norm,
    ox,
    oy,
    out_w,
    frame,
    width,
    height,
    stride_c,
    stride_y,
    stride_x,
    scale,
    fill,
    erase_value,
    OPS: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """Three finished channels of output pixels, and where they came from."""
    COVERED: tl.constexpr = FILL == 0 and (OPS & layout.Ops.OUTSIDE) != 0
    width_f = width.to(tl.float32)
    height_f = height.to(tl.float32)
    fx = ox.to(tl.float32)
    fy = oy.to(tl.float32)
    x, y = _places(row, fx, fy, width_f, height_f, OPS, FILL)
    spread_x = tl.load(row + layout.Column.SPREAD_X)
    spread_y = tl.load(row + layout.Column.SPREAD_Y)
    cover = 1.0
    if COVERED:
        cover = _cover(x, width_f, spread_x) * _cover(y, height_f, spread_y)
    cx = clamp(x, 0.0, width_f - 1.0)
    cy = clamp(y, 0.0, height_f - 1.0)
    r, g, b = _three_channels(
        image, cx, cy, width, height, stride_c, stride_y, stride_x, spread_x, spread_y, OPS, PACKED
    )
    gain = tl.load(row + layout.Column.GAIN) * scale
    shade = tl.load(row + layout.Column.OFFSET)
    if (OPS & layout.Ops.GRAY) != 0:
        gray = layout.GRAY_RED * r + layout.GRAY_GREEN * g + layout.GRAY_BLUE * b
        shade += tl.load(row + layout.Column.GRAY_GAIN) * scale * gray
    r = clamp(gain * r + shade, 0.0, 1.0)
    g = clamp(gain * g + shade, 0.0, 1.0)
    b = clamp(gain * b + shade, 0.0, 1.0)
    if (OPS & layout.Ops.HUE) != 0:
        r, g, b = turn_hue(r, g, b, tl.load(row + layout.Column.HUE))
    n0 = 0.0
    n1 = 0.0
    n2 = 0.0
    if (OPS & layout.Ops.NOISE) != 0:
        n0, n1, n2, _ = normals(row, (oy * out_w + ox).to(tl.uint32), frame, 0)
    erased = False
    if (OPS & layout.Ops.ERASE) != 0:
        erased = _erased(row, fx, fy, OPS)
    r = finish(r, n0, row, 0, cover, erased, norm, fill, erase_value, OPS, COVERED, NORMALIZE)
    g = finish(g, n1, row, 1, cover, erased, norm, fill, erase_value, OPS, COVERED, NORMALIZE)
    b = finish(b, n2, row, 2, cover, erased, norm, fill, erase_value, OPS, COVERED, NORMALIZE)
    return r, g, b, x, y


@triton.jit
def _label(mask, x, y, width, height, mask_fill, OPS: tl.constexpr, FILL: tl.constexpr):
    """The nearest label; halves go up."""
    near_x = tl.floor(x + 0.5).to(tl.int32)
    near_y = tl.floor(y + 0.5).to(tl.int32)
    if FILL == 0 and (OPS & layout.Ops.OUTSIDE) != 0:
        inside = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
        label = tl.load(mask + (near_y * width + near_x), mask=inside, other=0)
        return tl.where(inside, label, mask_fill.to(mask.dtype.element_ty))
    else:
        at = clamp(near_y, 0, height - 1) * width + clamp(near_x, 0, width - 1)
        return tl.load(mask + at)


@triton.jit
def _bits(v, dst):
    """A 16-bit output value as the low half of a word."""
    return v.to(dst.dtype.element_ty).to(tl.uint16, bitcast=True).to(tl.uint32)


@triton.jit(
    do_not_specialize=[
        "height", "width", "stride_n", "stride_c", "stride_y", "stride_x", "out_h", "out_w", "out_n", "out_c", "out_y",
        "out_x", "mask_n", "mask_x", "frames", "first", "count", "scale", "fill", "mask_fill", "erase_value",
    ],
    do_not_specialize_on_alignment=[
        "dst", "src", "mask_dst", "mask_src", "rows", "state", "norm", "offsets", "mask_offsets", "sizes",
    ],
)  # fmt: skip
def warp(
    dst,
    src,
    mask_dst,
    mask_src,
    rows,
    state,
    norm,
    offsets,
    mask_offsets,
    sizes,
    height,
    width,
    stride_n: tl.int64,
    stride_c,
    stride_y,
    stride_x,
    out_h,
    out_w,
    out_n: tl.int64,
    out_c,
    out_y,
    out_x,
    mask_n: tl.int64,
    mask_x,  # always 1, which Triton must not know: it would move labels between threads to store them wider
    frames,
    first,
    count,
    scale,
    fill,
    mask_fill: tl.int64,
    erase_value,
    OPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PACKED: tl.constexpr,
    RAGGED: tl.constexpr,
    MASKS: tl.constexpr,
    FILL: tl.constexpr,
    NORMALIZE: tl.constexpr,
    STORE: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    REVISION: tl.constexpr,
):
    """One tile of one output image. `frames` images in a row share a sample's row."""
    if COUNTS:  # the draws have been made: move the running index on, once
        if tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0:
            tl.store(state + 2, tl.load(state + 2) + count)
    frame = first + tl.program_id(2)
    sample = frame // frames
    row = rows + sample * layout.ROW
    if RAGGED:
        height = tl.load(sizes + 2 * sample)
        width = tl.load(sizes + 2 * sample + 1)
        stride_y = width * CHANNELS if RAGGED == 1 else width
        stride_c = 1 if RAGGED == 1 else height * width
        image = src + tl.load(offsets + sample)
    else:
        image = src + frame.to(tl.int64) * stride_n
    if MASKS:
        labels = mask_dst + frame.to(tl.int64) * (out_h * out_w)
        if RAGGED:
            mask = mask_src + tl.load(mask_offsets + sample)
        else:
            mask = mask_src + frame.to(tl.int64) * mask_n
    out = dst + frame.to(tl.int64) * out_n

    # One flat range: lanes run along x. In two dimensions Triton may lay them along y, and stores fall apart.
    WIDE: tl.constexpr = 2 if STORE == 1 else 1
    LANES: tl.constexpr = BLOCK_H * BLOCK_W // WIDE
    lane = tl.arange(0, LANES)
    ox = tl.program_id(0) * BLOCK_W + (lane % (BLOCK_W // WIDE)) * WIDE
    oy = tl.program_id(1) * BLOCK_H + lane // (BLOCK_W // WIDE)
    live = (ox < out_w) & (oy < out_h)

    if CHANNELS == 3:
        r, g, b, x, y = _pixel(
            image, row, norm, ox, oy, out_w, frame % frames, width, height, stride_c, stride_y, stride_x,
            scale, fill, erase_value, OPS, PACKED, FILL, NORMALIZE,
        )  # fmt: skip
        if MASKS:
            label = _label(mask, x, y, width, height, mask_fill, OPS, FILL)
            tl.store(labels + (oy * out_w + ox) * mask_x, label, mask=live)
        if STORE == 1:
            r2, g2, b2, x, y = _pixel(
                image, row, norm, ox + 1, oy, out_w, frame % frames, width, height, stride_c, stride_y, stride_x,
                scale, fill, erase_value, OPS, PACKED, FILL, NORMALIZE,
            )  # fmt: skip
            if MASKS:
                label = _label(mask, x, y, width, height, mask_fill, OPS, FILL)
                tl.store(labels + (oy * out_w + ox + 1) * mask_x, label, mask=live)
            words = out.to(tl.pointer_type(tl.uint32)) + ((oy * out_y + ox * out_x) >> 1)
            tl.store(words, _bits(r, dst) | (_bits(g, dst) << 16), mask=live)
            tl.store(words + 1, _bits(b, dst) | (_bits(r2, dst) << 16), mask=live)
            tl.store(words + 2, _bits(g2, dst) | (_bits(b2, dst) << 16), mask=live)
        else:
            at = out + (oy * out_y + ox * out_x)
            tl.store(at, as_output(r, dst), mask=live)
            tl.store(at + out_c, as_output(g, dst), mask=live)
            tl.store(at + 2 * out_c, as_output(b, dst), mask=live)
    else:
        COVERED: tl.constexpr = FILL == 0 and (OPS & layout.Ops.OUTSIDE) != 0
        width_f = width.to(tl.float32)
        height_f = height.to(tl.float32)
        fx = ox.to(tl.float32)
        fy = oy.to(tl.float32)
        x, y = _places(row, fx, fy, width_f, height_f, OPS, FILL)
        spread_x = tl.load(row + layout.Column.SPREAD_X)
        spread_y = tl.load(row + layout.Column.SPREAD_Y)
        cover = 1.0
        if COVERED:
            cover = _cover(x, width_f, spread_x) * _cover(y, height_f, spread_y)
        erased = False
        if (OPS & layout.Ops.ERASE) != 0:
            erased = _erased(row, fx, fy, OPS)
        cx = clamp(x, 0.0, width_f - 1.0)
        cy = clamp(y, 0.0, height_f - 1.0)
        # Without three colours saturation means nothing: gray is the value itself.
        gain = (tl.load(row + layout.Column.GAIN) + tl.load(row + layout.Column.GRAY_GAIN)) * scale
        shade = tl.load(row + layout.Column.OFFSET)
        for c in tl.static_range(CHANNELS):
            plane = image + c * stride_c
            v = _channel(plane, cx, cy, width, height, stride_y, stride_x, spread_x, spread_y, OPS)
            v = clamp(gain * v + shade, 0.0, 1.0)
            noise = 0.0
            if (OPS & layout.Ops.NOISE) != 0:
                n0, n1, n2, n3 = normals(row, (oy * out_w + ox).to(tl.uint32), frame % frames, c // 4)
                if c % 4 == 0:
                    noise = n0
                elif c % 4 == 1:
                    noise = n1
                elif c % 4 == 2:
                    noise = n2
                else:
                    noise = n3
            v = finish(v, noise, row, c, cover, erased, norm, fill, erase_value, OPS, COVERED, NORMALIZE)
            tl.store(out + (c * out_c + oy * out_y + ox * out_x), as_output(v, dst), mask=live)
        if MASKS:
            label = _label(mask, x, y, width, height, mask_fill, OPS, FILL)
            tl.store(labels + (oy * out_w + ox) * mask_x, label, mask=live)
