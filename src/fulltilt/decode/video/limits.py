"""What the video engines of a GPU decode, and how many there are, asked of the driver once for each codec.

To find out by a decoder that fails takes making one, for every file again. PyNvVideoCodec's own query makes a CUDA
context for each answer; the driver's function answers in the one that is there.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

NUMBERS = {"MPEG2": 1, "H264": 4, "HEVC": 8, "VP8": 9, "VP9": 10, "AV1": 11}
"""The driver's, by PyNvVideoCodec's names."""
_TITLES = {"MPEG2": "MPEG-2", "H264": "H.264"}
_420 = 1
_ENGINES, _LEAST_SESSIONS = 7, 2
"""Engines where the driver doesn't say. A single one is given two: while one's pictures are made RGB, it decodes."""
_BLOCK = 16
"""Side of the blocks that the driver counts. A picture is coded in up to as much more than is shown of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one codec with 8 bits in 4:2:0, in coded pixels."""

    is_supported: bool
    smallest: tuple[int, int] = (0, 0)
    """Width and height."""
    largest: tuple[int, int] = (0, 0)
    most_blocks: int = 0
    """Of 16×16, in a picture."""
    engines: int = 0
    """That decode it; 0 where the driver does not say."""

    def reason_against(self, codec: str, width: int, height: int) -> str | None:
        """Why such a video is not decoded, or None; where the coded size decides, which is not known, None."""
        title = _TITLES.get(codec, codec)
        if not self.is_supported:
            return f"this GPU's video engines don't decode {title}"
        size = (width, height)
        low = any(-side % _BLOCK + side < least for side, least in zip(size, self.smallest, strict=True))
        high = any(side > most for side, most in zip(size, self.largest, strict=True))
        if low or high:
            least, most = ("×".join(map(str, sides)) for sides in (self.smallest, self.largest))
            return f"this GPU's video engines decode {title} from {least} to {most}, and it is {width}×{height}"
        if (width // _BLOCK) * (height // _BLOCK) > self.most_blocks:
            most_pixels = f"{self.most_blocks * _BLOCK**2:,}"
            return f"this GPU's video engines decode {title} up to {most_pixels} pixels, and it is {width}×{height}"
        return None


class Caps(ctypes.Structure):
    """CUVIDDECODECAPS."""

    _fields_ = (
        ("codec", ctypes.c_int),
        ("chroma", ctypes.c_int),
        ("depth_minus_8", ctypes.c_uint),
        ("reserved_1", ctypes.c_uint * 3),
        ("is_supported", ctypes.c_ubyte),
        ("engines", ctypes.c_ubyte),
        ("formats", ctypes.c_ushort),
        ("max_width", ctypes.c_uint),
        ("max_height", ctypes.c_uint),
        ("max_blocks", ctypes.c_uint),
        ("min_width", ctypes.c_ushort),
        ("min_height", ctypes.c_ushort),
        ("reserved_2", ctypes.c_uint * 11),
    )


@functools.cache
def limits_of(gpu: int, codec: str) -> Limits | None:
    """None where the driver doesn't say: then a decoder has to be tried."""
    import torch

    driver = _driver()
    if driver is None:
        return None
    caps = Caps(codec=NUMBERS[codec], chroma=_420)
    with torch.cuda.device(gpu):
        torch.cuda.current_stream().synchronize()  # the context is this thread's from here on
        if driver.cuvidGetDecoderCaps(ctypes.byref(caps)):
            return None
    return Limits(
        is_supported=bool(caps.is_supported),
        smallest=(caps.min_width, caps.min_height),
        largest=(caps.max_width, caps.max_height),
        most_blocks=caps.max_blocks,
        engines=caps.engines,
    )


def sessions_of(gpu: int) -> int:
    """Decoders at once that give the most frames: one for each engine.

    More of them gain nothing in the engines, and lose in Python, whose lock their threads share. On an H200 with seven
    engines, as RGB: 4 give 3,650 frames/s, 7 4,850, 10 3,780, 14 4,100; decoding alone 7 give 6,390 and 14 6,680.
    """
    limits = limits_of(gpu, "H264")
    return max(_LEAST_SESSIONS, (limits.engines if limits is not None else 0) or _ENGINES)


def _driver() -> Any:
    try:
        found = ctypes.CDLL("libnvcuvid.so.1")
    except OSError:
        return None
    return found if hasattr(found, "cuvidGetDecoderCaps") else None
