"""Videos to decode: a textured picture that is panned over, with a little noise, as H.264 with B-frames."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fulltilt.decode.video.container import pyav

GOP = 32
LONG_GOP = 250
"""What encoders do unless they are told otherwise."""
GRAIN = 6
"""Noise of a camera in poor light, as bits go: half of what is decoded is its."""
LITTLE_GRAIN = 4
"""About what sites that show videos spend on 720p."""
RATE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is made."""

    width: int
    height: int
    frames: int
    files: int
    gop: int = GOP
    """Frames from one key frame to the next."""
    grain: int = GRAIN
    """Noise in every frame, at most so far from the picture."""

    @property
    def title(self) -> str:
        return f"H.264 {self.width}×{self.height}, {self.frames} frames, a key frame every {self.gop}, two B-frames"


def make_videos(folder: Path, material: Material) -> list[Path]:
    """One is encoded, the others are copies of it: each is opened and read by itself."""
    av = pyav()
    width, height = material.width, material.height
    first = folder / "0.mp4"
    scene = _scene(width + 2 * material.frames, height + material.frames)
    grain = np.random.default_rng(1).integers(-material.grain, material.grain + 1, (height + 64, width + 64), np.int16)
    with av.open(str(first), "w") as file:
        stream = file.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "crf": "23", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", material.gop
        planes = np.full((height * 3 // 2, width), 128, np.uint8)
        for number in range(material.frames):
            part = scene[number : number + height, 2 * number : 2 * number + width]
            at = number * 17 % 64
            planes[:height] = np.clip(part + grain[at : at + height, at : at + width], 0, 255)
            colour = part[::2, ::2] // 2 + 64
            planes[height:] = np.concatenate([colour, 255 - colour]).reshape(-1, width)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(planes, "yuv420p")))
        file.mux(stream.encode(None))
    others = [folder / f"{number}.mp4" for number in range(1, material.files)]
    for other in others:
        shutil.copyfile(first, other)
    return [first, *others]


def megabits_per_second(path: Path, material: Material) -> float:
    return path.stat().st_size * 8e-6 * RATE / material.frames


def _scene(width: int, height: int) -> np.ndarray:
    """Shapes of many sizes: noise at several scales, added up."""
    draw = np.random.default_rng(0)
    scene = np.full((height, width), 16.0, np.float32)
    for cell, strength in ((160, 90.0), (40, 60.0), (10, 30.0), (3, 14.0)):
        small = draw.random((height // cell + 2, width // cell + 2), dtype=np.float32)
        scene += strength * np.kron(small, np.ones((cell, cell), np.float32))[:height, :width]
    return scene.astype(np.int16)
