"""Videos with actions at known times, and clips of them: through the feed, or one by one for a DataLoader."""

from __future__ import annotations

import csv
import functools
import logging
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from fulltilt.cache import CacheSettings
from fulltilt.cache.video import build_videos
from fulltilt.decode.video.container import pyav
from fulltilt.errors import FulltiltError, InputError
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.recipes.generated import ROOT, generated
from fulltilt.recipes.video.drawing import ACTIONS, LEAST_FRAMES, pictures, script

log = logging.getLogger("fulltilt.recipes")

RATE = 25
_GOP = 32
SEGMENTS = "segments.csv"


def make_videos(count: int, *, frames: int, height: int, width: int, seed: int, root: str = ROOT) -> Path:
    """A folder of H.264 videos and `segments.csv`: path, label, start, end; made where it is not there yet.

    Times lie half a frame before the frame that they mean, so that no rounding moves them across it.
    """
    if frames < LEAST_FRAMES + 2:
        raise InputError(f"frames is {frames}; a video with an action has at least {LEAST_FRAMES + 2}")
    if height % 2 or width % 2 or min(height, width) < 16:
        raise InputError(f"height and width are {height} and {width}; expected even numbers from 16 on")
    arguments = {"count": count, "frames": frames, "height": height, "width": width, "seed": seed}
    write = functools.partial(_write, count=count, frames=frames, height=height, width=width, seed=seed)
    return generated("video", arguments, count, write, sample_seconds=3e-8 * frames * height * width, root=root)


def _write(folder: Path, number: int, *, count: int, frames: int, height: int, width: int, seed: int) -> None:
    _write_video(folder / _file(number), frames, height, width, seed, number)
    if number == 0:
        _write_segments(folder / SEGMENTS, count, frames, seed)


def _file(number: int) -> str:
    return f"{number:05d}.mp4"


def _write_video(path: Path, frames: int, height: int, width: int, seed: int, number: int) -> None:
    av = pyav()
    with av.open(str(path), "w") as file:
        options = {"preset": "veryfast", "crf": "20", "threads": "1"}  # a video to a thread: many are made at once
        stream = file.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", _GOP
        for picture in pictures(frames, height, width, seed, number):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        file.mux(stream.encode(None))


def _write_segments(path: Path, count: int, frames: int, seed: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "start", "end"])
        for number in range(count):
            for action in script(frames, seed, number):
                start, end = ((at - 0.5) / RATE for at in (action.start, action.end))
                rows.writerow([_file(number), action.kind, f"{start:.4f}", f"{end:.4f}"])


def clips(
    count: int = 64,
    *,
    frames: int = 1536,
    height: int = 240,
    width: int = 320,
    seed: int = 0,
    length: int = 768,
    size: int = 160,
    clips: int = 1,
    jitter: bool = True,
    together: int = 1,
    quality: Literal["exact", "fast"] = "exact",
    threads: int | Literal["auto"] = "auto",
    cache: str | None = None,
    root: str = ROOT,
) -> VideoClips:
    """Clips of `length` frames with a label for each, 0 or an action's; through the feed.

    Args:
        count, frames, height, width, seed: of the videos that are made.
        clips: of one video, in an epoch.
        jitter: a clip begins anywhere in its part of the video; otherwise in its middle.
        together, quality, threads: as `VideoClips` has them.
        cache: a folder for the frames, decoded; those of these videos that it does not have are put there first.
    """
    folder = make_videos(count, frames=frames, height=height, width=width, seed=seed, root=root)
    if cache is not None:
        _fill(cache, folder, size)
    return VideoClips(
        folder / SEGMENTS,
        length=length,
        size=(size, size),
        clips=clips,
        jitter=jitter,
        temporal=True,
        classes=ACTIONS,
        seed=seed,
        together=together,
        quality=quality,
        threads=threads,
        cache=cache,
    )


def _fill(cache: str, folder: Path, size: int) -> None:
    report = build_videos(cache, sorted(folder.glob("*.mp4")), settings=CacheSettings(size=size))
    if report.failures:
        first = report.failures[0]
        raise FulltiltError(
            f"{cache}: {len(report.failures)} videos can't be kept decoded; {first.path}: {first.error}"
        )
    if report.frames:
        log.info("%d frames decoded into %s, once, in %.0f s", report.frames, cache, report.seconds)


class ClipDataset(Dataset[tuple[Tensor, Tensor]]):
    """The same videos as an ordinary data set: every item opens its file, seeks, and decodes its clip with PyAV.

    `threads` decode and convert each frame; left to itself, PyAV takes as many as there are cores.
    """

    def __init__(
        self,
        count: int = 64,
        *,
        frames: int = 1536,
        height: int = 240,
        width: int = 320,
        seed: int = 0,
        length: int = 768,
        size: int = 160,
        clips: int = 1,
        jitter: bool = True,
        threads: int = 12,
        root: str = ROOT,
    ) -> None:
        if length * clips > frames:
            raise InputError(f"{clips} clips of {length} frames don't fit into videos of {frames}")
        self._folder = make_videos(count, frames=frames, height=height, width=width, seed=seed, root=root)
        self._scripts = [script(frames, seed, number) for number in range(count)]
        self._frames, self._length, self._size = frames, length, size
        self._clips, self._jitter, self._threads = clips, jitter, threads

    def __len__(self) -> int:
        return len(self._scripts) * self._clips

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        number, part = divmod(index, self._clips)
        begin, end = (self._frames * at // self._clips for at in (part, part + 1))
        latest = end - self._length
        start = int(torch.randint(begin, latest + 1, ())) if self._jitter else (begin + latest) // 2
        labels = np.zeros(self._frames, np.int64)
        for action in self._scripts[number]:
            labels[action.start : action.end] = ACTIONS.index(action.kind) + 1
        return (
            torch.from_numpy(self._decoded(self._folder / _file(number), start)),
            torch.from_numpy(labels[start : start + self._length]),
        )

    def _decoded(self, path: Path, start: int) -> NDArray[np.uint8]:
        av = pyav()
        found: list[NDArray[np.uint8]] = []
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            stream.thread_type, stream.thread_count = "AUTO", self._threads
            base = stream.time_base
            file.seek(round(start / RATE / base), stream=stream)
            for frame in file.decode(stream):
                if round(frame.pts * base * RATE) >= start:
                    found.append(self._resized(frame.to_ndarray(format="rgb24", threads=self._threads)))
                if len(found) == self._length:
                    break
        return np.stack(found)

    def _resized(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Scaled to cover a square of `size`, and its middle cut out."""
        height, width = picture.shape[:2]
        if (height, width) == (self._size, self._size):
            return picture
        from PIL import Image

        scale = self._size / min(height, width)
        tall, wide = round(height * scale), round(width * scale)
        top, left = (tall - self._size) // 2, (wide - self._size) // 2
        scaled = Image.fromarray(picture).resize((wide, tall), Image.Resampling.BILINEAR)
        return np.asarray(scaled.crop((left, top, left + self._size, top + self._size)))
