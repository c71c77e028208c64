"""Files like photographs, made up: what decoders are measured with when no data set is at hand.

A JPEG decoder's time goes with the file's bytes and the picture's size, so both have to be like a camera's. Photographs
have amplitudes that fall as 1 / frequency, edges, smooth parts, grain, and colours far smoother than brightness.
Textures like that are made once per seed; a photo is layers cut from them, with sharp-edged shapes on top.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fulltilt.errors import InputError

_TEXTURE_SIDE: Final = 1024
_ROUGH: Final = (0.8, 0.9, 1.0)
_SMOOTH: Final = (1.6, 1.8, 2.0)
_SHAPES: Final = 5
_CALIBRATION: Final = 24
_QUALITY: Final = 95
_SUBSAMPLING: Final = "420"

Floats = NDArray[np.float32]


def make_photos(
    folder: Path,
    count: int,
    *,
    size: tuple[int, int] = (500, 375),
    target_bytes: int = 80_000,
    seed: int = 0,
    vary: float = 0.15,
) -> list[Path]:
    """Write `count` JPEGs (4:2:0) of about `size` (width, height) and `target_bytes`; the same for the same arguments.

    `vary`: sides differ by up to this share, and some photos stand upright; 0 makes all of one size.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index, data in enumerate(photos(count, size=size, target_bytes=target_bytes, seed=seed, vary=vary)):
        path = folder / f"photo-{index:06d}.jpg"
        path.write_bytes(data)
        paths.append(path)
    return paths


def photos(
    count: int,
    *,
    size: tuple[int, int] = (500, 375),
    target_bytes: int = 80_000,
    seed: int = 0,
    vary: float = 0.15,
) -> Iterator[bytes]:
    """The files' bytes, one after another; see `make_photos`."""
    if count < 0 or min(size) < 16 or max(size) * (1 + vary) > _TEXTURE_SIDE or not 0 <= vary < 1:
        raise InputError(
            f"count {count}, size {size}, vary {vary}: sides from 16 to {_TEXTURE_SIDE} (with vary), vary from 0 to 1"
        )
    # Bytes follow the grain's strength; the scale is found on this seed's first photos and kept for all.
    grain = _grain_for(size, target_bytes, seed)
    for index in range(count):
        random = np.random.default_rng((seed, index))
        stretch = 1 + random.uniform(-vary, vary, 2)
        width, height = (max(16, round(side * by)) for side, by in zip(size, stretch, strict=True))
        if vary and random.random() < 0.25:
            width, height = height, width
        yield _encode(photo(width, height, seed=seed, index=index, grain=grain))


def photo(width: int, height: int, *, seed: int = 0, index: int = 0, grain: float = 1.0) -> NDArray[np.uint8]:
    """One picture, H×W×3. `grain`: the strength of fine detail."""
    random = np.random.default_rng((seed, index, 1))
    rough, smooth = _textures(seed)

    def cut(layers: tuple[Floats, ...]) -> Floats:
        layer = layers[random.integers(len(layers))]
        top, left = random.integers(_TEXTURE_SIDE - height + 1), random.integers(_TEXTURE_SIDE - width + 1)
        piece = layer[top : top + height, left : left + width]
        return piece[:, ::-1] if random.random() < 0.5 else piece

    slope = np.linspace(-1, 1, height, dtype=np.float32)[:, None] * np.float32(random.normal(0, 30))
    busy = np.clip(cut(smooth) + np.float32(0.8), 0.15, 2.0)  # skies and walls here, leaves and hair there
    luma = cut(rough) * (busy * np.float32(38 * grain)) + cut(smooth) * np.float32(30)
    luma += slope + np.float32(random.uniform(95, 150))
    blue, red = (cut(smooth) * np.float32(7) + np.float32(random.normal(0, 7)) for _ in range(2))
    for _ in range(_SHAPES):
        _add_shape(random, luma, blue, red)
    return _to_rgb(luma, blue, red)


def _add_shape(random: np.random.Generator, luma: Floats, blue: Floats, red: Floats) -> None:
    """An ellipse or a box with a light, a tint and a contrast of its own, in place: sharp edges in all planes."""
    height, width = luma.shape
    half_y, half_x = (int(side * random.uniform(0.05, 0.3)) + 4 for side in (height, width))
    y, x = int(random.integers(height)), int(random.integers(width))
    part = slice(max(0, y - half_y), y + half_y), slice(max(0, x - half_x), x + half_x)
    rows = (np.arange(height, dtype=np.float32)[part[0], None] - y) / half_y
    columns = (np.arange(width, dtype=np.float32)[None, part[1]] - x) / half_x
    round_ = random.random() < 0.6
    inside = (rows * rows + columns * columns < (1 if round_ else 2)).astype(np.float32)
    contrast, light = random.uniform(0.2, 1.2), random.uniform(40, 200)
    luma[part] += inside * (np.float32(contrast - 1) * (luma[part] - 128) + np.float32(light - 128) * np.float32(0.7))
    for plane in (blue, red):
        plane[part] += inside * np.float32(random.normal(0, 14))


def _to_rgb(luma: Floats, blue: Floats, red: Floats) -> NDArray[np.uint8]:
    out = np.empty((*luma.shape, 3), np.uint8)
    out[..., 0] = np.clip(luma + np.float32(1.402) * red, 0, 255)
    out[..., 1] = np.clip(luma - np.float32(0.344) * blue - np.float32(0.714) * red, 0, 255)
    out[..., 2] = np.clip(luma + np.float32(1.772) * blue, 0, 255)
    return out


@functools.lru_cache(maxsize=2)
def _textures(seed: int) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Rough and smooth fields of mean 0 and deviation 1. Photographs' amplitudes fall about as 1 / frequency."""
    random = np.random.default_rng((seed, 2))
    side = _TEXTURE_SIDE
    radius = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    radius[0, 0] = 1.0

    def field(power: float) -> Floats:
        spectrum = np.fft.rfft2(random.standard_normal((side, side))) * radius**-power
        spectrum[0, 0] = 0.0
        made = np.fft.irfft2(spectrum, (side, side))
        normal: Floats = (made / made.std()).astype(np.float32)
        return normal

    return tuple(field(power) for power in _ROUGH), tuple(field(power) for power in _SMOOTH)


@functools.lru_cache(maxsize=16)
def _grain_for(size: tuple[int, int], target_bytes: int, seed: int) -> float:
    """The strength of detail at which this seed's photos have so many bytes, by bisection on a few of them."""
    low, high = 0.02, 8.0
    for _ in range(8):
        grain = math.sqrt(low * high)
        made = [_encode(photo(*size, seed=seed, index=index, grain=grain)) for index in range(_CALIBRATION)]
        if sum(map(len, made)) < target_bytes * len(made):
            low = grain
        else:
            high = grain
    return math.sqrt(low * high)


def _encode(pixels: NDArray[np.uint8]) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(pixels, quality=_QUALITY, colorsubsampling=_SUBSAMPLING)
    return data
