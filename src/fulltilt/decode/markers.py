"""JPEG's markers: all that comes before its pixels."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from fulltilt.decode.header import Header
from fulltilt.decode.orientation import UPRIGHT, orientation_of, stored
from fulltilt.errors import DecodeError

_START_OF_SCAN: Final = 0xDA
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Start of frame, in each of JPEG's processes. The three left out define tables."""
_PROGRESSIVE: Final = (0xC2, 0xC6, 0xCA, 0xCE)
_JFIF, _EXIF, _ADOBE = 0xE0, 0xE1, 0xEE
_BARE: Final = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))
"""Markers without a length."""
_MISPLACED: Final = (0xD8, 0xD9)
"""Start and end of an image."""
_MARKER: Final = struct.Struct(">BH").unpack_from
_FRAME: Final = struct.Struct(">BHHB").unpack_from
_BASELINE: Final = 0xC0
_COMMON_SAMPLING: Final = (b"\x11\x11\x11", b"\x21\x11\x11", b"\x22\x11\x11")
_MODES: Final = {1: "L", 3: "RGB", 4: "CMYK"}


def read_header(view: bytes | memoryview) -> Header:
    """From the markers before the first scan."""
    frame, orientation, scan = 0, UPRIGHT, 0
    height = width = parts = bits = 0
    names, sampling, is_jfif, transform = b"", b"", False, -1
    in_scan = 0
    for marker, start, end in _segments(view):
        if marker in _FRAMES and not frame:
            if end - start < 6:
                raise DecodeError(f"broken JPEG: a frame header of {end - start} bytes", problem="corrupt")
            frame = marker
            bits, height, width, parts = _FRAME(view, start)
            names, sampling = bytes(view[start + 6 : start + 15 : 3]), bytes(view[start + 7 : start + 15 : 3])
        elif marker == _EXIF and orientation == UPRIGHT and bytes(view[start : start + 4]) == b"Exif":
            orientation = orientation_of(bytes(view[start:end]))
        elif marker == _JFIF and bytes(view[start : start + 5]) == b"JFIF\0":
            is_jfif = True
        elif marker == _ADOBE and end - start >= 12 and bytes(view[start : start + 5]) == b"Adobe":
            transform = view[start + 11]
        elif marker == _START_OF_SCAN and end > start:
            in_scan = view[start]
        scan = start - 4
    _check(frame, height, width, parts, bits)
    height, width = stored(height, width, orientation)
    return Header(
        format="jpeg",
        width=width,
        height=height,
        mode=_MODES[parts],
        orientation=orientation,
        bits=bits,
        progressive=frame in _PROGRESSIVE,
        # libjpeg's rule: JFIF says luma and chroma, otherwise Adobe's marker decides, otherwise the components' names.
        plain_rgb=parts == 3 and not is_jfif and (transform == 0 or (transform < 0 and names == b"RGB")),
        for_engines=frame == _BASELINE and in_scan == parts == 3 and sampling in _COMMON_SAMPLING,
        scan_offset=scan,
    )


def cut_short(length: int) -> DecodeError:
    """What to raise for a file that ends before its pixels do."""
    return DecodeError(f"truncated: the JPEG ends after {length:,} bytes, before its last pixels", problem="truncated")


def _segments(view: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Each marker with the place of its content, up to and including the first scan's."""
    at, size = 2, len(view)
    while True:
        while at + 4 <= size and view[at] != 0xFF:
            at += 1  # libjpeg steps over such bytes, too
        while at + 4 <= size and view[at + 1] == 0xFF:
            at += 1
        if at + 4 > size:
            raise cut_short(size)
        marker, length = _MARKER(view, at + 1)
        if marker in _BARE:
            at += 2
            continue
        if marker in _MISPLACED:
            raise DecodeError(f"broken JPEG: marker 0x{marker:02x} before any pixels, at byte {at}", problem="corrupt")
        if length < 2:
            raise DecodeError(f"broken JPEG: a segment of {length} bytes at byte {at}", problem="corrupt")
        end = at + 2 + length
        if end > size:
            raise cut_short(size)
        yield marker, at + 4, end
        if marker == _START_OF_SCAN:
            return
        at = end


def _check(frame: int, height: int, width: int, parts: int, bits: int) -> None:
    if not frame or not width:
        raise DecodeError("broken JPEG: no size before the pixels", problem="corrupt")
    if not height:
        raise DecodeError(
            "a JPEG that gives its height only after its pixels (DNL): save it again", problem="unsupported"
        )
    if parts not in _MODES:
        raise DecodeError(f"a JPEG of {parts} components; decoded are 1, 3 and 4", problem="unsupported")
    if bits != 8:
        raise DecodeError(f"a JPEG of {bits} bits; decoded are 8: convert it to PNG", problem="unsupported")
