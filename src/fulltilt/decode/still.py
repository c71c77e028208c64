"""Images: bytes to upright 8-bit pixels, in memory that the caller gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode.header import Header, as_view
from fulltilt.decode.jpeg import Quality, decode_pixels
from fulltilt.decode.orientation import UPRIGHT, stored, upright
from fulltilt.decode.recognise import probe
from fulltilt.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Room: TypeAlias = NDArray[Any] | bytearray | memoryview
"""Writable contiguous bytes."""

SHRINKS: Final = (1, 2, 4, 8)


def decode(
    data: Buffer,
    *,
    header: Header | None = None,
    channels: int = 3,
    quality: Quality = "exact",
    shrink: int = 1,
) -> NDArray[np.uint8]:
    """An image as H×W×C, 8 bits, upright. See `decode_into`."""
    header = header or probe(data)
    height, width = size_of(header, shrink)
    out = np.empty((height, width, channels), np.uint8)
    decode_into(data, out, header=header, channels=channels, quality=quality, shrink=shrink)
    return out


def decode_into(
    data: Buffer,
    out: Room,
    *,
    header: Header | None = None,
    channels: int = 3,
    quality: Quality = "exact",
    shrink: int = 1,
) -> tuple[int, int]:
    """Write an image to the beginning of `out` as H×W×C, upright, and return (H, W).

    `header` saves reading it again where it is known. `channels`: 1 (grey), 3 (RGB) or 4 (RGBA).
    `quality="fast"` takes libjpeg's fast DCT and upsampling. `shrink` 2, 4 or 8 divides both sides, rounded up; JPEG
    does so before it makes pixels. An upright JPEG goes straight into `out` with the GIL released.
    After a DecodeError `out` may hold anything.
    """
    header = header or probe(data)
    view = as_view(data)
    _check(channels, quality)
    height, width = size_of(header, shrink)
    room = as_room(out, height * width * channels, f"{height}×{width}×{channels}")
    if header.format != "jpeg":
        from fulltilt.decode import pillow

        room.reshape(height, width, channels)[...] = pillow.pixels(view, header, channels, shrink)
    elif header.orientation == UPRIGHT:
        decode_pixels(view, room, (height, width), channels, quality, header)
    else:
        size = stored(height, width, header.orientation)
        lying = np.empty(room.size, np.uint8)
        decode_pixels(view, lying, size, channels, quality, header)
        room.reshape(height, width, channels)[...] = upright(lying.reshape(*size, channels), header.orientation)
    return height, width


def size_of(header: Header, shrink: int = 1) -> tuple[int, int]:
    """(height, width) of what `decode_into` writes."""
    if shrink not in SHRINKS:
        raise InputError(f"shrink is {shrink!r}; allowed: {', '.join(map(str, SHRINKS))}")
    return -(-header.height // shrink), -(-header.width // shrink)


def pick_shrink(header: Header, target_short_side: int) -> int:
    """The largest shrink that leaves the short side at `target_short_side` or more; 1 where shrinking gains nothing.

    Only JPEG gains: fewer frequencies are transformed. Only powers of two do: between them libjpeg-turbo has no
    vectorised transform, and 5/8 takes longer than the whole. docs/decode.md has the measurements.
    """
    if target_short_side < 1:
        raise InputError(f"target_short_side is {target_short_side!r}; allowed: 1 or more")
    if header.format != "jpeg":
        return 1
    return max(shrink for shrink in SHRINKS if shrink == 1 or min(size_of(header, shrink)) >= target_short_side)


def as_room(out: Room, needed_bytes: int, shape: str) -> NDArray[np.uint8]:
    """The first `needed_bytes` of `out`, flat."""
    array = out if isinstance(out, np.ndarray) else np.frombuffer(out, np.uint8)
    if array.dtype != np.uint8 or not array.flags.c_contiguous or not array.flags.writeable:
        raise InputError(
            f"out must be writable, contiguous bytes; found {array.dtype}, contiguous: {array.flags.c_contiguous}, "
            f"writable: {array.flags.writeable}"
        )
    if array.size < needed_bytes:
        raise InputError(
            f"out has {array.size:,} bytes, {shape} needs {needed_bytes:,}: ask probe() and size_of() first"
        )
    return array.reshape(-1)[:needed_bytes]


def _check(channels: int, quality: str) -> None:
    if channels not in (1, 3, 4):
        raise InputError(f"channels is {channels!r}; allowed: 1 (grey), 3 (RGB), 4 (RGBA)")
    if quality not in ("exact", "fast"):
        raise InputError(f'quality is {quality!r}; allowed: "exact", "fast"')
