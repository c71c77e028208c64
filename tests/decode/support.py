"""Encoded images for the tests, made by Pillow, by hand where Pillow can't."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fulltilt.bench.photos import photo


def picture(width: int = 97, height: int = 61, index: int = 0) -> Image.Image:
    return Image.fromarray(photo(width, height, index=index, grain=0.6))


def saved(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def pillow_rgb(data: bytes) -> NDArray[np.uint8]:
    """What most training scripts get: Pillow's decode, as RGB."""
    return np.asarray(opened(data).convert("RGB"))


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def png(samples: NDArray[Any], bits: int, colour_type: int = 0, extra: bytes = b"") -> bytes:
    """H×W (or H×W×C) samples of 1, 2, 4, 8 or 16 bits; Pillow writes neither 2- and 4-bit grey nor 16-bit RGB."""
    height, width = samples.shape[:2]
    channels = samples.shape[2] if samples.ndim == 3 else 1
    if bits == 16:
        rows = samples.astype(">u2").tobytes()
    elif bits == 8:
        rows = samples.astype(np.uint8).tobytes()
    else:
        spread = (samples[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        rows = np.packbits(spread.reshape(height, -1).astype(np.uint8), axis=1).tobytes()
    length = len(rows) // height
    raw = b"".join(b"\0" + rows[i * length : (i + 1) * length] for i in range(height))
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    assert channels in (1, 2, 3, 4)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + extra + chunk(b"IEND", b"")
    )


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.int32]:
    assert a.shape == b.shape
    return np.abs(a.astype(np.int32) - b.astype(np.int32))
