"""What an image is: its size and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """An encoded image's size and kind. Sizes are those of the pixels that come out, upright."""

    format: str
    """jpeg, png, gif, webp, bmp, tiff, ppm, jpeg2000 or avif."""
    width: int
    height: int
    mode: str
    """As Pillow names it: L, RGB, CMYK, P, RGBA, 1, I;16, …"""
    orientation: int = 1
    """EXIF's, 1 to 8; 1 is upright."""
    bits: int = 8
    """Of one stored sample."""
    progressive: bool = False
    """JPEG alone: the pixels come in several scans (not what the GPU's engines decode)."""
    plain_rgb: bool = False
    """JPEG alone: three components that are RGB as they stand, not luma and chroma."""
    for_engines: bool = False
    """JPEG alone: baseline, one scan, luma and chroma at 4:4:4, 4:2:2 or 4:2:0. What hardware decodes everywhere."""
    scan_offset: int = 0
    """JPEG alone: where the first scan begins, in bytes."""


def as_view(data: Buffer) -> memoryview:
    """Any contiguous buffer as a flat view of bytes."""
    view = memoryview(data)
    return view if view.ndim == 1 and view.itemsize == 1 and view.format == "B" else view.cast("B")
