"""JPEG: its markers, read here, and its pixels, through libjpeg-turbo with the GIL released.

libjpeg fills what is missing with grey and merely warns. So its warnings are errors here, except those after which no
pixel is missing: too many bytes before the end, an odd version number (both are common in public data sets).
"""

from __future__ import annotations

import struct
from typing import Any, Final, Literal

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fulltilt.decode.header import Header
from fulltilt.decode.orientation import UPRIGHT, orientation_of, stored
from fulltilt.errors import DecodeError

Quality = Literal["exact", "fast"]

_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Start of frame, in each of JPEG's processes. The three left out define tables."""
_PROGRESSIVE: Final = (0xC2, 0xC6, 0xCA, 0xCE)
_BARE: Final = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))
"""Markers without a length."""
_MISPLACED: Final = (0xD8, 0xD9)
"""Start and end of an image."""
_MARKER: Final = struct.Struct(">BH").unpack_from
_FRAME: Final = struct.Struct(">BHHB").unpack_from
_MODES: Final = {1: "L", 3: "RGB", 4: "CMYK"}
_FORMATS: Final = {1: "GRAY", 3: "RGB", 4: "RGBA"}

_HARMLESS: Final = (
    "extraneous bytes before marker 0xd9",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
    "Invalid SOS parameters for sequential JPEG",
)
"""libjpeg's warnings after which no pixel is missing."""
_BEYOND: Final = ("nsupported", "not supported", "rithmetic", "requested feature was omitted")


def read_header(view: bytes | memoryview) -> Header:
    """From the markers before the first scan."""
    at, end = 2, len(view)
    frame, orientation = 0, UPRIGHT
    height = width = parts = bits = 0
    while True:
        while at + 4 <= end and view[at] != 0xFF:
            at += 1  # libjpeg steps over such bytes, too
        while at + 4 <= end and view[at + 1] == 0xFF:
            at += 1
        if at + 4 > end:
            raise _cut(end)
        marker, length = _MARKER(view, at + 1)
        if marker in _BARE:
            at += 2
            continue
        if marker in _MISPLACED:
            raise DecodeError(f"broken JPEG: marker 0x{marker:02x} before any pixels, at byte {at}", problem="corrupt")
        if at + 2 + length > end:
            raise _cut(end)
        if marker in _SIZES and not frame:
            if length < 8:
                raise DecodeError(f"broken JPEG: a frame header of {length} bytes", problem="corrupt")
            frame = marker
            bits, height, width, parts = _FRAME(view, at + 4)
        elif marker == 0xE1:
            if orientation == UPRIGHT and bytes(view[at + 4 : at + 8]) == b"Exif":
                orientation = orientation_of(bytes(view[at + 4 : at + 2 + length]))
        elif marker == 0xDA:
            break
        at += 2 + max(length, 2)
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
        scan_offset=at,
    )


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


def decode_pixels(
    view: memoryview, out: NDArray[np.uint8], size: tuple[int, int], channels: int, quality: Quality, header: Header
) -> None:
    """Into `out` (flat, H×W×C bytes) as stored, not yet upright. A `size` below the header's means DCT scaling."""
    if header.mode == "CMYK":
        inks = np.empty((*size, 4), np.uint8)
        _decompress(view, inks.reshape(-1), size, "CMYK", quality, header)
        _print_inks(inks, out.reshape(*size, channels))
    else:
        _decompress(view, out, size, _FORMATS[channels], quality, header)


def is_whole(view: memoryview, header: Header) -> bool:
    """Whether the end-of-image marker is there: a file that was cut short has none after its scans begin."""
    if bytes(view[-2:]) == b"\xff\xd9":
        return True
    return bytes(view).rfind(b"\xff\xd9", header.scan_offset) >= 0


def _decompress(
    view: memoryview, out: NDArray[np.uint8], size: tuple[int, int], colours: str, quality: Quality, header: Header
) -> None:
    fast = quality == "fast"
    # The least of both sides selects the scale; 1/2, 1/4 and 1/8 of a size rounded up are always found exactly.
    options: dict[str, Any] = {
        "colorspace": colours,
        "fastdct": fast,
        "fastupsample": fast,
        "min_height": size[0],
        "min_width": size[1],
        "buffer": out,
    }
    try:
        made = simplejpeg.decode_jpeg(view, **options)
    except ValueError as error:
        made = _despite(str(error), view, options, header)
    if made.shape[:2] != size:
        raise DecodeError(f"broken JPEG: {made.shape[:2]} decoded, {size} announced", problem="corrupt")


def _despite(message: str, view: memoryview, options: dict[str, Any], header: Header) -> NDArray[np.uint8]:
    """Decode once more where the warning is harmless; otherwise say what is wrong."""
    if "Premature end of JPEG" in message:
        raise _cut(len(view)) from None
    if any(text in message for text in _HARMLESS):
        # Only the first warning is told; a later one may have been that the file was cut.
        if not is_whole(view, header):
            raise _cut(len(view)) from None
        try:
            made: NDArray[np.uint8] = simplejpeg.decode_jpeg(view, **options, strict=False)
            return made
        except ValueError as error:
            message = str(error)
    if "determine subsampling" in message:  # TurboJPEG knows the usual factors only, libjpeg all
        return _through_pillow(view, options, header)
    if any(text in message for text in _BEYOND):
        raise DecodeError(f"libjpeg can't decode it ({message}): save it as a baseline JPEG", problem="unsupported")
    raise DecodeError(f"damaged JPEG ({message}): fetch or save it again", problem="corrupt")


def _through_pillow(view: memoryview, options: dict[str, Any], header: Header) -> NDArray[np.uint8]:
    from fulltilt.decode import pillow

    if not is_whole(view, header):
        raise _cut(len(view))
    height, width = options["min_height"], options["min_width"]
    colours = options["colorspace"]
    made = pillow.jpeg_pixels(view, "L" if colours == "GRAY" else colours, shrink=-(-header.height // height))
    room: NDArray[np.uint8] = options["buffer"]
    if made.shape[:2] == (height, width):
        room.reshape(made.shape)[...] = made
    return made


def _print_inks(inks: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Ink on paper as RGB, by Pillow's integer formula. Adobe's convention (0 is full ink) holds for all JPEGs."""
    black = inks[..., 3:].astype(np.uint32)
    product = (255 - inks[..., :3].astype(np.uint32)) * black + 128
    colours = black - ((product + (product >> 8)) >> 8)
    if out.shape[-1] == 1:
        weights = np.array([19595, 38470, 7471], np.uint32)
        out[..., 0] = (colours @ weights + 0x8000) >> 16
    else:
        out[..., :3] = colours
        out[..., 3:] = 255


def _cut(length: int) -> DecodeError:
    return DecodeError(f"truncated: the JPEG ends after {length:,} bytes, before its last pixels", problem="truncated")
