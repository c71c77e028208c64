"""A decoded picture into place: colours and size by swscale, turned upright."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode.video.container import pyav
from fulltilt.decode.video.straight import Straight

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Pixels = NDArray[np.uint8]
_SMALL = {"yuv420p": "yuv422p", "yuvj420p": "yuvj422p"}
"""What such pixels are scaled to first, if it is to be fast: as many rows of colour as a scaled picture has."""


class Converter:
    """For the pictures of one video.

    Scaling to RGB is one pass of swscale, whose loops for that are plain C. `fast` scales to planes of brightness and
    colour first, and makes RGB of the small picture: both have vector code. Of 255, mean 1.5 apart.
    """

    def __init__(self, *, turn: int, fast: bool) -> None:
        """
        Args:
            turn: quarter turns, counterclockwise, that make pictures upright.
        """
        self._turn, self._fast = turn, fast
        self._straight = Straight()
        self.forget()

    def forget(self) -> None:
        """Let the tables go; they are made anew for the next picture."""
        self._scale, self._colour = _reformatter(), _reformatter()
        self._straight.forget()

    def __call__(self, picture: VideoFrame, out: Pixels) -> None:
        if not self._turn and self._straight(picture, out):
            return
        height, width = out.shape[:2]
        if self._turn % 2:
            height, width = width, height
        small = _SMALL.get(picture.format.name)
        if self._fast and small is not None and height < picture.height and width % 2 == 0:
            picture = self._scale(picture, width=width, height=height, format=small, interpolation="BILINEAR")
        rgb = self._colour(picture, width=width, height=height, format="rgb24", interpolation="BILINEAR")
        plane = rgb.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:height, : 3 * width]
        out[:] = np.rot90(rows.reshape(height, width, 3), self._turn)


def _reformatter() -> Callable[..., VideoFrame]:
    """Converts pictures, with tables that are kept from one to the next; a picture's own makes them every time.

    Without threads of its own: in a process that is forked meanwhile they would never answer.
    """
    from av.video.reformatter import VideoReformatter

    return functools.partial(VideoReformatter().reformat, **_alone())


@functools.cache
def _alone() -> dict[str, Any]:
    """How a conversion is told to use one thread; older libraries have no others."""
    av = pyav()
    try:
        av.video.reformatter.VideoReformatter().reformat(av.VideoFrame(16, 16, "yuv420p"), format="rgb24", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}
