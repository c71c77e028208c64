"""PNG's header, read here because Pillow needs fifty times as long, and for EXIF decodes the whole image first."""

from __future__ import annotations

import struct
from typing import Final

from fulltilt.decode.header import Header
from fulltilt.decode.orientation import UPRIGHT, orientation_of, stored
from fulltilt.errors import DecodeError

_MODES: Final = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
"""By PNG's colour type."""


def read_header(view: bytes | memoryview) -> Header:
    """Size and kind from the first chunk; the orientation from wherever an eXIf chunk stands."""
    if len(view) < 33:
        raise DecodeError(f"truncated: only {len(view)} bytes of a PNG", problem="truncated")
    length, name, width, height, bits, colour = struct.unpack_from(">I4sIIBB", view, 8)
    if name != b"IHDR" or length != 13 or colour not in _MODES or bits not in (1, 2, 4, 8, 16) or not width * height:
        raise DecodeError(
            f"broken PNG: its first chunk is {name!r}, {width}×{height}, {bits} bits, colour type {colour}",
            problem="corrupt",
        )
    mode = _MODES[colour]
    if mode == "L":
        mode = {1: "1", 16: "I;16"}.get(bits, "L")
    orientation = _orientation(view)
    height, width = stored(height, width, orientation)
    return Header(format="png", width=width, height=height, mode=mode, orientation=orientation, bits=bits)


def _orientation(view: bytes | memoryview) -> int:
    """Chunks say how long they are, so the pixels are stepped over, not read."""
    at, end = 33, len(view)
    while at + 12 <= end:
        length, name = struct.unpack_from(">I4s", view, at)
        if name == b"eXIf":
            return orientation_of(bytes(view[at + 8 : at + 8 + length]))
        if name == b"IEND":
            break
        at += 12 + length
    return UPRIGHT
