"""EXIF orientation: reading the tag, and turning pixels upright."""

from __future__ import annotations

import struct
from typing import Any, Final

from numpy.typing import NDArray

UPRIGHT: Final = 1
_TAG = 0x0112
_READERS = {1: "B", 3: "H", 4: "I"}
"""A byte, a short (what the standard says) or a long (what some write)."""


def orientation_of(exif: bytes) -> int:
    """1 to 8 from an EXIF block, with or without its `Exif` prefix. What can't be read counts as upright."""
    if exif.startswith(b"Exif\0"):
        exif = exif[6:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return UPRIGHT
    try:
        (directory,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, directory)
        for start in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(order + "HH", exif, start)
            if tag == _TAG and kind in _READERS:
                (value,) = struct.unpack_from(order + _READERS[kind], exif, start + 8)
                return value if 1 <= value <= 8 else UPRIGHT
    except struct.error:  # it points outside of itself
        pass
    return UPRIGHT


def swaps_sides(orientation: int) -> bool:
    """Whether upright, height and width change places."""
    return orientation >= 5


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """A view of H×W or H×W×C as it is meant to be seen."""
    if swaps_sides(orientation):
        pixels = pixels.swapaxes(0, 1)
    rows, columns = flips(orientation)
    return pixels[:: -1 if rows else 1, :: -1 if columns else 1]


def flips(orientation: int) -> tuple[bool, bool]:
    """Whether rows and columns are reversed, after the sides were swapped where they are."""
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def stored(height: int, width: int, orientation: int) -> tuple[int, int]:
    """The size in the file, from the size upright (or the other way round)."""
    return (width, height) if swaps_sides(orientation) else (height, width)
