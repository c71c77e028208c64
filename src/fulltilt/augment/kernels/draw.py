"""The draws on the device: one lane per sample. The torch form is `fulltilt.augment.draws`."""

from __future__ import annotations

import triton
import triton.language as tl

from fulltilt.augment import layout


@triton.jit
def _words(seed, low, high, epoch, block: tl.constexpr):
    return tl.philox(seed, low, high, epoch, tl.zeros_like(low) + block)


@triton.jit
def _to_uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _uniforms(seed, low, high, epoch, first: tl.constexpr):
    """The four uniforms whose block begins with number `first`."""
    a, b, c, d = _words(seed, low, high, epoch, first // 4)
    return _to_uniform(a), _to_uniform(b), _to_uniform(c), _to_uniform(d)


@triton.jit
def _value(full, rest, strength, slot: tl.constexpr):
    return strength * tl.load(full + slot) + (1.0 - strength) * tl.load(rest + slot)


@triton.jit
def _between(full, rest, strength, low_slot: tl.constexpr, u):
    """Ranges stand as neighbours: low, then high."""
    low = _value(full, rest, strength, low_slot)
    high = _value(full, rest, strength, low_slot + 1)
    return low + (high - low) * u


@triton.jit
def _times(a, b, c, d, e, f, n0, n1, n2, n3, n4, n5, n6, n7, n8):
    """An affine 2 × 3 times a 3 × 3: the upper two rows of the product."""
    return (
        a * n0 + b * n3 + c * n6,
        a * n1 + b * n4 + c * n7,
        a * n2 + b * n5 + c * n8,
        d * n0 + e * n3 + f * n6,
        d * n1 + e * n4 + f * n7,
        d * n2 + e * n5 + f * n8,
    )


@triton.jit
def _perspective(reach, happens, u0, u1, u2, u3, u4, u5, u6, u7, out_h, out_w):
    x0 = reach * u0 - 1.0
    y0 = reach * u1 - 1.0
    x1 = 1.0 - reach * u2
    y1 = reach * u3 - 1.0
    x2 = 1.0 - reach * u4
    y2 = 1.0 - reach * u5
    x3 = reach * u6 - 1.0
    y3 = 1.0 - reach * u7
    dx1 = x1 - x2
    dx2 = x3 - x2
    sx = x0 - x1 + x2 - x3
    dy1 = y1 - y2
    dy2 = y3 - y2
    sy = y0 - y1 + y2 - y3
    den = dx1 * dy2 - dx2 * dy1
    g = (sx * dy2 - dx2 * sy) / den
    h = (dx1 * sy - sx * dy1) / den
    a = x1 - x0 + g * x1
    b = x3 - x0 + h * x3
    d = y1 - y0 + g * y1
    e = y3 - y0 + h * y3
    b0 = d * h - e * g
    b1 = b * g - a * h
    b2 = a * e - b * d
    half_x = tl.maximum((out_w - 1.0) * 0.5, 0.5)
    half_y = tl.maximum((out_h - 1.0) * 0.5, 0.5)
    return (
        tl.where(happens, (2.0 * (e - y0 * h) - b0) / b2, 1.0),
        tl.where(happens, (2.0 * (x0 * h - b) - b1) / b2 * (half_x / half_y), 0.0),
        tl.where(happens, (2.0 * (b * y0 - x0 * e) - b2) / b2 * half_x, 0.0),
        tl.where(happens, (2.0 * (y0 * g - d) - b0) / b2 * (half_y / half_x), 0.0),
        tl.where(happens, (2.0 * (a - x0 * g) - b1) / b2, 1.0),
        tl.where(happens, (2.0 * (x0 * d - a * y0) - b2) / b2 * half_y, 0.0),
        tl.where(happens, b0 / b2 / half_x, 0.0),
        tl.where(happens, b1 / b2 / half_y, 0.0),
        tl.zeros_like(b2) + 1.0,
    )


@triton.jit
def _resized_crop(seed, low, high, epoch, full, rest, strength, height, width):
    ratio_low = tl.exp(_value(full, rest, strength, layout.Slot.LOG_RATIO_LO))
    ratio_high = tl.exp(_value(full, rest, strength, layout.Slot.LOG_RATIO_HI))
    box_w = tl.minimum(width, tl.floor(height * ratio_high + 0.5))
    box_h = tl.minimum(height, tl.floor(width / ratio_low + 0.5))
    found = width < 0.0
    for pair in tl.static_range(layout.CROP_ATTEMPTS // 2):
        u0, u1, u2, u3 = _uniforms(seed, low, high, epoch, layout.Uniform.CROP + 4 * pair)
        for second in tl.static_range(2):
            u_area = u2 if second else u0
            u_ratio = u3 if second else u1
            area = height * width * _between(full, rest, strength, layout.Slot.AREA_LO, u_area)
            ratio = tl.exp(_between(full, rest, strength, layout.Slot.LOG_RATIO_LO, u_ratio))
            w = tl.floor(tl.sqrt_rn(area * ratio) + 0.5)
            h = tl.floor(tl.sqrt_rn(tl.div_rn(area, ratio)) + 0.5)
            fits = (w >= 1.0) & (h >= 1.0) & (w <= width) & (h <= height) & (found == 0)
            box_w = tl.where(fits, w, box_w)
            box_h = tl.where(fits, h, box_h)
            found = found | fits
    return box_w, box_h, found


@triton.jit(
    do_not_specialize=["count", "height", "width", "out_h", "out_w", "crop_padding", "eval_crop", "chunks"],
    do_not_specialize_on_alignment=["rows", "state", "index", "full", "rest", "strength_at", "sizes", "sums"],
)
def draw(
    rows,
    state,  # seed, epoch, next index
    index,
    full,
    rest,
    strength_at,
    sizes,
    sums,
    count,
    height,
    width,
    out_h,
    out_w,
    crop_padding,
    eval_crop,
    chunks,
    OPS: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    HAS_SIZES: tl.constexpr,
    BLOCK: tl.constexpr,
    REVISION: tl.constexpr,
):
    """Write one row for each of `count` samples; `warp` moves the running index on."""
    seed = tl.load(state)
    strength = tl.load(strength_at)
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = lane < count
    if HAS_INDEX:
        identity = tl.load(index + lane, mask=live, other=0)
    else:
        identity = tl.load(state + 2) + lane
    low = (identity & 0xFFFFFFFF).to(tl.uint32)
    high = ((identity >> 32) & 0xFFFFFFFF).to(tl.uint32)
    epoch = tl.zeros_like(low) + (tl.load(state + 1) & 0xFFFFFFFF).to(tl.uint32)
    one = tl.full((BLOCK,), 1.0, tl.float32)
    zero = tl.zeros((BLOCK,), tl.float32)
    if HAS_SIZES:
        in_h = tl.load(sizes + 2 * lane, mask=live, other=1).to(tl.float32)
        in_w = tl.load(sizes + 2 * lane + 1, mask=live, other=1).to(tl.float32)
    else:
        in_h = one * height
        in_w = one * width
    to_h = one * out_h
    to_w = one * out_w
    row = rows + lane * layout.ROW

    # The box of the input that is shown.
    left = zero
    top = zero
    box_w = in_w
    box_h = in_h
    if (OPS & (layout.Ops.RANDOM_CROP | layout.Ops.RESIZED_CROP | layout.Ops.AFFINE)) != 0:
        u_shear_x, u_shear_y, u_crop_x, u_crop_y = _uniforms(seed, low, high, epoch, layout.Uniform.SHEAR_X)
    if (OPS & layout.Ops.CENTRE) != 0:
        if (OPS & layout.Ops.RANDOM_CROP) != 0:
            box_w = to_w
            box_h = to_h
        elif eval_crop > 0.0:
            zoom = tl.minimum(tl.div_rn(in_w, to_w), tl.div_rn(in_h, to_h)) * eval_crop
            box_w = zoom * to_w
            box_h = zoom * to_h
        left = tl.floor((in_w - box_w) * 0.5)
        top = tl.floor((in_h - box_h) * 0.5)
    elif (OPS & layout.Ops.RANDOM_CROP) != 0:
        room_x = in_w + (2.0 * crop_padding - to_w)
        room_y = in_h + (2.0 * crop_padding - to_h)
        left = tl.floor(u_crop_x * (room_x + 1.0)) - crop_padding
        top = tl.floor(u_crop_y * (room_y + 1.0)) - crop_padding
        left = tl.where(room_x < 0.0, tl.floor((in_w - to_w) * 0.5), left)
        top = tl.where(room_y < 0.0, tl.floor((in_h - to_h) * 0.5), top)
        box_w = to_w
        box_h = to_h
    elif (OPS & layout.Ops.RESIZED_CROP) != 0:
        box_w, box_h, found = _resized_crop(seed, low, high, epoch, full, rest, strength, in_h, in_w)
        room_x = in_w - box_w
        room_y = in_h - box_h
        left = tl.where(found, tl.floor(u_crop_x * (room_x + 1.0)), tl.floor(room_x * 0.5))
        top = tl.where(found, tl.floor(u_crop_y * (room_y + 1.0)), tl.floor(room_y * 0.5))

    # What undoes perspective, then affine, then turns, about the centre.
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = one, zero, zero, zero, one, zero, zero, zero, one
    if (OPS & layout.Ops.TURN) != 0:
        u_h, u_v, u_turn, u_turns = _uniforms(seed, low, high, epoch, layout.Uniform.HORIZONTAL_FLIP)
        flip_x = tl.where(u_h < _value(full, rest, strength, layout.Slot.HORIZONTAL_FLIP_PROB), -1.0, 1.0)
        flip_y = tl.where(u_v < _value(full, rest, strength, layout.Slot.VERTICAL_FLIP_PROB), -1.0, 1.0)
        turns = tl.where(to_h == to_w, tl.floor(u_turns * 3.0) + 1.0, 2.0)
        turns = tl.where(u_turn < _value(full, rest, strength, layout.Slot.QUARTER_TURN_PROB), turns, 0.0)
        cos = tl.where(turns == 0.0, 1.0, tl.where(turns == 2.0, -1.0, 0.0))
        sin = tl.where(turns == 1.0, 1.0, tl.where(turns == 3.0, -1.0, 0.0))
        m0 = flip_x * cos
        m1 = flip_x * sin
        m3 = -flip_y * sin
        m4 = flip_y * cos
    if (OPS & layout.Ops.AFFINE) != 0:
        u_angle, u_scale, u_x, u_y = _uniforms(seed, low, high, epoch, layout.Uniform.ROTATION)
        angle = _between(full, rest, strength, layout.Slot.ROTATION_LO, u_angle)
        scale = _between(full, rest, strength, layout.Slot.SCALE_LO, u_scale)
        shear_x = _value(full, rest, strength, layout.Slot.SHEAR_X) * (2.0 * u_shear_x - 1.0)
        shear_y = _value(full, rest, strength, layout.Slot.SHEAR_Y) * (2.0 * u_shear_y - 1.0)
        shift_x = _value(full, rest, strength, layout.Slot.TRANSLATE_X) * (2.0 * u_x - 1.0) * to_w
        shift_y = _value(full, rest, strength, layout.Slot.TRANSLATE_Y) * (2.0 * u_y - 1.0) * to_h
        tan = tl.sin(shear_x) / tl.cos(shear_x)
        cos = tl.cos(angle - shear_y) / tl.cos(shear_y)
        sin = tl.sin(angle - shear_y) / tl.cos(shear_y)
        a = tl.div_rn(tl.cos(angle) - sin * tan, scale)
        b = tl.div_rn(tl.sin(angle) + cos * tan, scale)
        c = tl.div_rn(-sin, scale)
        d = tl.div_rn(cos, scale)
        e = -(a * shift_x + b * shift_y)
        f = -(c * shift_x + d * shift_y)
        m0, m1, m2, m3, m4, m5 = _times(m0, m1, m2, m3, m4, m5, a, b, e, c, d, f, zero, zero, one)
    if (OPS & layout.Ops.PERSPECTIVE) != 0:
        u_if, _, _, _ = _uniforms(seed, low, high, epoch, layout.Uniform.PERSPECTIVE_IF)
        u0, u1, u2, u3 = _uniforms(seed, low, high, epoch, layout.Uniform.PERSPECTIVE)
        u4, u5, u6, u7 = _uniforms(seed, low, high, epoch, layout.Uniform.PERSPECTIVE + 4)
        happens = u_if < _value(full, rest, strength, layout.Slot.PERSPECTIVE_PROB)
        reach = tl.where(happens, _value(full, rest, strength, layout.Slot.PERSPECTIVE), 0.0)
        n0, n1, n2, n3, n4, n5, n6, n7, n8 = _perspective(reach, happens, u0, u1, u2, u3, u4, u5, u6, u7, to_h, to_w)
        m0, m1, m2, m3, m4, m5 = _times(m0, m1, m2, m3, m4, m5, n0, n1, n2, n3, n4, n5, n6, n7, n8)
        m6 = n6
        m7 = n7
        m8 = n8

    # The whole way: centre, undo, scale to the box, move to the box's centre.
    centre_x = (to_w - 1.0) * 0.5
    centre_y = (to_h - 1.0) * 0.5
    ratio_x = tl.div_rn(box_w, to_w)
    ratio_y = tl.div_rn(box_h, to_h)
    at_x = left + (box_w - 1.0) * 0.5
    at_y = top + (box_h - 1.0) * 0.5
    p = ratio_x * m0 + at_x * m6
    q = ratio_x * m1 + at_x * m7
    r = ratio_x * m2 + at_x * m8
    tl.store(row + 0, p, mask=live)
    tl.store(row + 1, q, mask=live)
    tl.store(row + 2, r - (p * centre_x + q * centre_y), mask=live)
    p = ratio_y * m3 + at_y * m6
    q = ratio_y * m4 + at_y * m7
    r = ratio_y * m5 + at_y * m8
    tl.store(row + 3, p, mask=live)
    tl.store(row + 4, q, mask=live)
    tl.store(row + 5, r - (p * centre_x + q * centre_y), mask=live)
    tl.store(row + 6, m6, mask=live)
    tl.store(row + 7, m7, mask=live)
    tl.store(row + 8, m8 - (m6 * centre_x + m7 * centre_y), mask=live)
    spread_x = one
    spread_y = one
    if (OPS & layout.Ops.ANTIALIAS) != 0:
        spread_x = tl.sqrt_rn(ratio_x * m0 * (ratio_x * m0) + ratio_x * m1 * (ratio_x * m1))
        spread_y = tl.sqrt_rn(ratio_y * m3 * (ratio_y * m3) + ratio_y * m4 * (ratio_y * m4))
    tl.store(row + layout.Column.SPREAD_X, spread_x, mask=live)
    tl.store(row + layout.Column.SPREAD_Y, spread_y, mask=live)

    # Colour.
    gain = one
    gray_gain = zero
    offset = zero
    hue = zero
    gamma = one
    solarize = one * 2.0
    posterize = zero
    if (OPS & (layout.Ops.COLOUR | layout.Ops.HUE)) != 0:
        u_brightness, u_contrast, u_saturation, u_hue = _uniforms(seed, low, high, epoch, layout.Uniform.BRIGHTNESS)
    if (OPS & (layout.Ops.COLOUR | layout.Ops.GAMMA | layout.Ops.SOLARIZE)) != 0:
        u_gray, u_invert, u_gamma, u_solarize = _uniforms(seed, low, high, epoch, layout.Uniform.GRAY)
    if (OPS & layout.Ops.COLOUR) != 0:
        brightness = _between(full, rest, strength, layout.Slot.BRIGHTNESS_LO, u_brightness)
        contrast = _between(full, rest, strength, layout.Slot.CONTRAST_LO, u_contrast)
        saturation = one
        if (OPS & layout.Ops.GRAY) != 0:
            saturation = _between(full, rest, strength, layout.Slot.SATURATION_LO, u_saturation)
            saturation = tl.where(u_gray < _value(full, rest, strength, layout.Slot.GRAY_PROB), 0.0, saturation)
        if (OPS & layout.Ops.MEAN_PIVOT) != 0:
            mean = zero
            for chunk in range(0, chunks):  # in a fixed order: the same bits every time
                mean += tl.load(sums + lane * chunks + chunk, mask=live, other=0.0)
            pivot = brightness * mean
        else:
            pivot = one * _value(full, rest, strength, layout.Slot.CONTRAST_PIVOT)
        total = brightness * contrast
        offset = (1.0 - contrast) * pivot
        inverted = u_invert < _value(full, rest, strength, layout.Slot.INVERT_PROB)
        total = tl.where(inverted, -total, total)
        offset = tl.where(inverted, 1.0 - offset, offset)
        gain = total * saturation
        gray_gain = total * (1.0 - saturation)
    if (OPS & layout.Ops.HUE) != 0:
        hue = _between(full, rest, strength, layout.Slot.HUE_LO, u_hue)
    if (OPS & layout.Ops.GAMMA) != 0:
        gamma = _between(full, rest, strength, layout.Slot.GAMMA_LO, u_gamma)
    if (OPS & layout.Ops.SOLARIZE) != 0:
        threshold = _value(full, rest, strength, layout.Slot.SOLARIZE_THRESHOLD)
        solarize = tl.where(u_solarize < _value(full, rest, strength, layout.Slot.SOLARIZE_PROB), threshold, 2.0)
    if (OPS & (layout.Ops.POSTERIZE | layout.Ops.ERASE | layout.Ops.BLUR)) != 0:
        u_posterize, u_erase, u_blur, u_sigma = _uniforms(seed, low, high, epoch, layout.Uniform.POSTERIZE)
    if (OPS & layout.Ops.POSTERIZE) != 0:
        step = tl.exp2(8.0 - tl.floor(_value(full, rest, strength, layout.Slot.POSTERIZE_BITS) + 0.5))
        posterize = tl.where(u_posterize < _value(full, rest, strength, layout.Slot.POSTERIZE_PROB), step, 0.0)
    tl.store(row + layout.Column.GAIN, gain, mask=live)
    tl.store(row + layout.Column.GRAY_GAIN, gray_gain, mask=live)
    tl.store(row + layout.Column.OFFSET, offset, mask=live)
    tl.store(row + layout.Column.HUE, hue, mask=live)
    tl.store(row + layout.Column.GAMMA, gamma, mask=live)
    tl.store(row + layout.Column.SOLARIZE, solarize, mask=live)
    tl.store(row + layout.Column.POSTERIZE, posterize, mask=live)

    # Noise, erasing, blur.
    noise = zero
    if (OPS & layout.Ops.NOISE) != 0:
        noise = one * _value(full, rest, strength, layout.Slot.NOISE_STD)
        key0, key1, _, _ = _words(seed, low, high, epoch, layout.Uniform.NOISE_KEY // 4)
        tl.store(row + layout.Column.NOISE_KEY, key0.to(tl.float32, bitcast=True), mask=live)
        tl.store(row + layout.Column.NOISE_KEY + 1, key1.to(tl.float32, bitcast=True), mask=live)
    tl.store(row + layout.Column.NOISE, noise, mask=live)
    erase_l = zero
    erase_t = zero
    erase_r = zero
    erase_b = zero
    if (OPS & layout.Ops.ERASE) != 0:
        u_area, u_ratio, u_left, u_top = _uniforms(seed, low, high, epoch, layout.Uniform.ERASE_AREA)
        area = _between(full, rest, strength, layout.Slot.ERASE_AREA_LO, u_area) * (to_h * to_w)
        ratio = tl.exp(_between(full, rest, strength, layout.Slot.ERASE_LOG_RATIO_LO, u_ratio))
        h = tl.minimum(tl.floor(tl.sqrt_rn(area * ratio) + 0.5), to_h)
        w = tl.minimum(tl.floor(tl.sqrt_rn(tl.div_rn(area, ratio)) + 0.5), to_w)
        erased = u_erase < _value(full, rest, strength, layout.Slot.ERASE_PROB)
        erase_l = tl.where(erased, tl.floor(u_left * (to_w - w + 1.0)), 0.0)
        erase_t = tl.where(erased, tl.floor(u_top * (to_h - h + 1.0)), 0.0)
        erase_r = tl.where(erased, erase_l + w, 0.0)
        erase_b = tl.where(erased, erase_t + h, 0.0)
    tl.store(row + layout.Column.ERASE, erase_l, mask=live)
    tl.store(row + layout.Column.ERASE + 1, erase_t, mask=live)
    tl.store(row + layout.Column.ERASE + 2, erase_r, mask=live)
    tl.store(row + layout.Column.ERASE + 3, erase_b, mask=live)
    sigma = zero
    if (OPS & layout.Ops.BLUR) != 0:
        sigma = _between(full, rest, strength, layout.Slot.BLUR_SIGMA_LO, u_sigma)
        sigma = tl.where(u_blur < _value(full, rest, strength, layout.Slot.BLUR_PROB), sigma, 0.0)
    tl.store(row + layout.Column.BLUR, sigma, mask=live)
