"""JPEG's pixels, through libjpeg-turbo with the GIL released.

libjpeg fills what is missing with grey and merely warns. So its warnings are errors here, except those after which no
pixel is missing: too many bytes before the end, an odd version number (both occur in public data sets).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fulltilt.decode.header import Header
from fulltilt.decode.markers import cut_short
from fulltilt.decode.orientation import stored
from fulltilt.errors import DecodeError

Quality = Literal["exact", "fast"]

_FORMATS: Final = {1: "GRAY", 3: "RGB", 4: "RGBA"}

_HARMLESS: Final = (
    "extraneous bytes before marker 0xd9",
    "Invalid SOS parameters for sequential JPEG",
)
"""libjpeg's warnings after which no pixel is missing."""
_BEYOND: Final = ("nsupported", "not supported", "rithmetic", "requested feature was omitted")


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
    made = _strictly(view, options, header)
    if made.shape[:2] != size:
        raise DecodeError(f"broken JPEG: {made.shape[:2]} decoded, {size} announced", problem="corrupt")


def _strictly(view: memoryview, options: dict[str, Any], header: Header) -> NDArray[np.uint8]:
    try:
        made: NDArray[np.uint8] = simplejpeg.decode_jpeg(view, **options)
    except ValueError as error:
        return _despite(str(error), view, options, header)
    return made


def _despite(message: str, view: memoryview, options: dict[str, Any], header: Header) -> NDArray[np.uint8]:
    """Decode in another way where the warning is harmless; otherwise say what is wrong."""
    # Only the first warning is told; a later one may have been that the file was cut.
    if "Premature end of JPEG" in message or not is_whole(view, header):
        raise cut_short(len(view)) from None
    if "unknown JFIF revision" in message:  # refused with the header; nothing depends on it, so it is put right
        fixed = bytearray(view)
        at = fixed.index(b"JFIF\0")
        fixed[at + 5 : at + 7] = b"\1\1"
        return _strictly(memoryview(fixed), options, header)
    if any(text in message for text in _HARMLESS):
        made: NDArray[np.uint8] = simplejpeg.decode_jpeg(view, **options, strict=False)
        return made
    if "determine subsampling" in message:  # TurboJPEG knows the usual factors only, libjpeg all
        return _through_pillow(view, options, header)
    if any(text in message for text in _BEYOND):
        raise DecodeError(f"libjpeg can't decode it ({message}): save it as a baseline JPEG", problem="unsupported")
    raise DecodeError(f"damaged JPEG ({message}): fetch or save it again", problem="corrupt")


def _through_pillow(view: memoryview, options: dict[str, Any], header: Header) -> NDArray[np.uint8]:
    from fulltilt.decode import pillow

    size = options["min_height"], options["min_width"]
    whole = stored(header.height, header.width, header.orientation)
    shrink = next((by for by in (1, 2, 4, 8) if size == (-(-whole[0] // by), -(-whole[1] // by))), 1)
    made = pillow.jpeg_pixels(view, "L" if options["colorspace"] == "GRAY" else options["colorspace"], shrink)
    room: NDArray[np.uint8] = options["buffer"]
    if made.shape[:2] == size:
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


def cpu_reason(header: Header, view: memoryview) -> str | None:
    """Why an image is left to the CPU, or None if the GPU may have it."""
    if header.format != "jpeg":
        return header.format
    reasons = {
        "progressive": header.progressive,
        "CMYK": header.mode == "CMYK",
        "grey": header.mode == "L",
        "plain RGB": header.plain_rgb,
        "rare coding": not header.for_engines,
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    # The engines don't report a missing end; the CPU's decoder does.
    return None if is_whole(view, header) else "truncated"
