"""What a video is, how fast it is decoded here, and what would make clips of it cheaper."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

import numpy as np

from fulltilt.decode.video.reader import Video, open_video
from fulltilt.errors import DecodeError

CLIP = 16
"""Frames of the clips that random access is measured with."""
_WORTH = 1.5
"""Advice is given where it would make random clips so many times as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One video."""

    path: str
    codec: str
    width: int
    height: int
    frames: int
    rate: float | None
    duration_seconds: float | None
    key_interval: float
    """Frames from one key frame to the next, on average."""
    frames_per_second: float
    """One after another, by one thread."""
    clip_frames_per_second: float
    """Of random clips of `CLIP` frames, by one thread: counted are those of the clips."""
    nvdec_frames_per_second: float | None
    """One after another, by one decoder of the GPU; None without a GPU, or where it does not decode this."""
    nvdec_problem: str | None
    """Why it does not."""
    advice: str | None
    damage: str | None
    """Of the frames that were decoded, the first that could not be; the others still count."""


def survey(path: str | PathLike[str], *, seconds: float = 1.0, device: str | None = None) -> Survey:
    """Opens it and decodes for about `seconds` each in order, at random, and on `device` where it is given."""
    with open_video(path) as video:
        damage: list[str] = []
        nvdec, problem = (None, None) if device is None else _on_device(path, video, seconds, device, damage)
        in_order = _rate(video, seconds, lambda at: range(at * CLIP % len(video), len(video))[:CLIP], damage)
        draw = np.random.default_rng(0)
        latest = max(1, len(video) - CLIP + 1)
        clips = _rate(video, seconds, lambda _: range(int(draw.integers(latest)), len(video))[:CLIP], damage)
        interval = video.index.key_interval
        return Survey(
            path=str(path),
            codec=video.codec,
            width=video.width,
            height=video.height,
            frames=len(video),
            rate=video.rate,
            duration_seconds=video.duration_seconds,
            key_interval=interval,
            frames_per_second=in_order,
            clip_frames_per_second=clips,
            nvdec_frames_per_second=nvdec,
            nvdec_problem=problem,
            advice=advice(interval, seekable=video.index.times is not None),
            damage=damage[0] if damage else None,
        )


def _on_device(
    path: str | PathLike[str], video: Video, seconds: float, device: str, damage: list[str]
) -> tuple[float | None, str | None]:
    """Frames per second of the GPU's engines, or why there are none."""
    import torch

    with open_video(path, known=video.known, device=device) as there:
        if there.decision.value != "nvdec":
            return None, there.decision.reason

        def frames(wanted: range) -> int:
            given = len(there.frames(wanted, size=(there.height, there.width)))
            torch.cuda.synchronize(there.device)
            return given

        return _counted(frames, seconds, lambda at: range(at * CLIP % len(there), len(there))[:CLIP], damage), None


def decoded_per_frame(key_interval: float) -> float:
    """Frames decoded for each that a random clip wants: on average half an interval lies before it."""
    return (key_interval / 2 + CLIP) / CLIP


def advice(key_interval: float, *, seekable: bool) -> str | None:
    """What to do about a file of which clips are to be taken; None where it is fine."""
    if not seekable:
        return "it has no times to jump to: put it in a container (ffmpeg -i IN -c copy OUT.mp4)"
    gain = decoded_per_frame(key_interval) / decoded_per_frame(CLIP)
    if gain < _WORTH:
        return None
    return (
        f"a key frame every {key_interval:.0f} frames: random clips decode {decoded_per_frame(key_interval):.1f} "
        f"frames for each one wanted. ffmpeg -i IN -g {CLIP} OUT would make them about {gain:.1f} times as fast; "
        "VideoClips(together=…) decodes several of a video in one pass"
    )


def _rate(video: Video, seconds: float, pick: Callable[[int], range], damage: list[str]) -> float:
    size = (video.height, video.width)  # of all, also where the resolution changes
    return _counted(lambda wanted: len(video.frames(wanted, size=size)), seconds, pick, damage)


def _counted(frames: Callable[[range], int], seconds: float, pick: Callable[[int], range], damage: list[str]) -> float:
    """Frames per second over at least one call; what can't be decoded is noted."""
    given, began = 0, time.perf_counter()
    for number in range(10_000):
        try:
            given += frames(pick(number))
        except DecodeError as error:
            damage.append(str(error))
        if time.perf_counter() - began >= seconds:
            break
    return given / (time.perf_counter() - began)
