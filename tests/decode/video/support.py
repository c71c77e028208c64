"""Videos made on the spot: every frame differs, and tells its number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np

CODECS = {
    "h264": ("libx264", "mp4", {"bf": "3", "b-pyramid": "normal"}),
    "h264 open gop": ("libx264", "mkv", {"bf": "3", "x264-params": "open-gop=1:keyint=12:min-keyint=12:scenecut=0"}),
    "hevc": ("libx265", "mp4", {"x265-params": "log-level=none:bframes=3:pools=1:open-gop=1"}),
    "vp9": (
        "libvpx-vp9",
        "webm",
        {"cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "10"},
    ),
    "av1": ("libsvtav1", "mp4", {"preset": "12"}),
    "mpeg4": ("mpeg4", "avi", {"bf": "2"}),
    "mpeg-ts": ("libx264", "ts", {"bf": "2"}),
}  # name: encoder, container, options


def picture(number: int, width: int, height: int) -> np.ndarray:
    """A gradient that moves, and the number as bars of black and white."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([(x * 2 + number * 7) % 256, (y * 3 + number * 5) % 256, (x + y + number * 11) % 256], -1)
    for bit in range(8):
        image[: height // 4, bit * width // 8 : (bit + 1) * width // 8] = 255 if number >> bit & 1 else 0
    return image.astype(np.uint8)


def make(
    path: Path,
    codec: str = "h264",
    *,
    count: int = 40,
    size: tuple[int, int] = (96, 64),
    gop: int = 12,
    uneven: bool = False,
    pixels: str = "yuv420p",
    rotation: int = 0,
) -> Path:
    """A video of `count` frames; `uneven` gives them uneven times."""
    import av  # here: tests on a GPU import this before they know whether it is there

    encoder, suffix, options = CODECS[codec]
    path = path.with_suffix(f".{suffix}")
    with _priority_kept(), av.open(str(path), "w") as file:
        stream = file.add_stream(encoder, rate=25, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.gop_size = gop
        stream.codec_context.thread_count = 1
        if uneven:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
        time = 0
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture(number, *size), "rgb24")
            if uneven:
                frame.pts, frame.time_base = time, Fraction(1, 1000)
                time += 17 + 23 * (number * 7 % 5)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


@contextmanager
def _priority_kept() -> Iterator[None]:
    """SVT-AV1, run by root, gives the thread that calls it a priority above everybody's, and never takes it back. All
    processes that later tests start would have it, too, and starve those of the tests beside them."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def sequential(path: Path) -> np.ndarray:
    """All frames, decoded one after another: what random access has to equal."""
    import av

    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
