"""Pictures to RGB straight into their place: swscale, without what its binding puts in between.

PyAV makes a new picture of every conversion, which then has to be copied: in 720p 2.8 MB are written once more and read
twice, and where all cores decode they share the memory. Its own swscale is called instead, for the one case that needs
no more than a table of colours: pictures in 4:2:0 with 8 bits, in their own size, all rows of one moment. The same code
runs there, so pixels are the same.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode.video.container import pyav

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_FORMATS = {"yuv420p": 0, "yuvj420p": 12}
"""FFmpeg's numbers for them; of the second, samples have the full range."""
_MATRICES = frozenset((1, 2, 4, 5, 6, 7, 9))
"""By their numbers in ITU-T H.273; others are rare, and libraries differ in what they make of them."""
_RGB24 = 2
_BILINEAR = 2
_FULL = 2
"""AVCOL_RANGE_JPEG."""
_ONE = 1 << 16
"""Contrast and saturation as they are."""
_WIDTH = 32
"""Widths are multiples of it: the vector code goes in such steps, and behind ours somebody else's memory begins."""
_Pointers, _Sizes = ctypes.c_void_p * 4, ctypes.c_int * 4


class Straight:
    """For the pictures of one video; its tables are kept from one to the next."""

    def __init__(self) -> None:
        self._kind: tuple[Any, ...] | None = None
        self._tables: int | None = None
        self._free: weakref.finalize[Any, Any] | None = None

    def __call__(self, picture: VideoFrame, out: NDArray[np.uint8]) -> bool:
        """Whether it was done; False where it takes more than this."""
        height, width, library = picture.height, picture.width, _swscale()
        of, matrix = _FORMATS.get(picture.format.name), int(picture.colorspace)
        if library is None or of is None or matrix not in _MATRICES:
            return False
        if picture.interlaced_frame:  # each half of the rows has colours of its own
            return False
        if out.shape != (height, width, 3) or width % _WIDTH or height % 2 or not out.flags.c_contiguous:
            return False
        kind = (height, width, of, matrix, int(picture.color_range))
        if kind != self._kind and not self._make(library, kind):
            return False
        planes = picture.planes
        steps = [plane.line_size for plane in planes]
        if min(steps) <= 0:  # upside down
            return False
        done = library.sws_scale(
            self._tables,
            _Pointers(*(plane.buffer_ptr for plane in planes)),
            _Sizes(*steps),
            0,
            height,
            _Pointers(out.ctypes.data),
            _Sizes(3 * width),
        )
        return bool(done == height)

    def _make(self, library: Any, kind: tuple[int, int, int, int, int]) -> bool:
        self.forget()
        height, width, of, matrix, its_range = kind
        tables = library.sws_getContext(width, height, of, width, height, _RGB24, _BILINEAR, None, None, None)
        if not tables:
            return False
        self._free = weakref.finalize(self, library.sws_freeContext, tables)
        colours = library.sws_getCoefficients(matrix)
        full = its_range == _FULL or of != _FORMATS["yuv420p"]
        if library.sws_setColorspaceDetails(tables, colours, full, colours, 1, 0, _ONE, _ONE) < 0:
            return False
        self._kind, self._tables = kind, tables
        return True

    def forget(self) -> None:
        """Let the tables go; they are made anew for the next picture."""
        if self._free is not None:
            self._free()
        self._kind = self._tables = self._free = None


@functools.cache
def _swscale() -> Any | None:
    """The library that PyAV itself is linked with, whatever its name; None where it has not these functions."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    try:
        # Asked for a function, an extension module's handle looks through the libraries that it needs, too.
        library = ctypes.CDLL(pyav().video.reformatter.__file__)
        library.sws_getContext.restype, library.sws_getContext.argtypes = pointer, (*[number] * 7, *[pointer] * 3)
        library.sws_getCoefficients.restype, library.sws_getCoefficients.argtypes = pointer, (number,)
        library.sws_setColorspaceDetails.argtypes = (pointer, pointer, number, pointer, *[number] * 4)
        library.sws_scale.argtypes = (pointer, pointer, pointer, number, number, pointer, pointer)
        library.sws_freeContext.argtypes, library.sws_freeContext.restype = (pointer,), None
    except (OSError, AttributeError):
        return None
    return library
