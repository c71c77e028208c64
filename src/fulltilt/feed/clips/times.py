"""Seconds of a table to frames of a video: the part that clips are taken from, and labels of frames."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode.video import Video
from fulltilt.decode.video.device import DeviceVideo
from fulltilt.errors import InputError
from fulltilt.feed.clips.entries import Entry


def frames_within(entry: Entry, video: Video | DeviceVideo) -> tuple[int, int]:
    """First and last frame that clips may have."""
    last = len(video) - 1
    if entry.start is None and entry.end is None:
        return 0, last
    frames = range(len(video))
    first = bisect_left(frames, entry.start or 0.0, key=lambda frame: _seconds(video, frame))
    if entry.end is not None:
        last = bisect_left(frames, entry.end, key=lambda frame: _seconds(video, frame)) - 1
    if first > last:
        ends = _seconds(video, len(video) - 1)
        raise InputError(f"{entry.path}: no frame from {entry.start} to {entry.end} s; the last is at {ends:.2f} s")
    return first, last


def _seconds(video: Video | DeviceVideo, frame: int) -> float:
    time = video.time_of(frame)
    if time is None:
        raise InputError(f"{video.path}: has no times, so that start and end mean nothing")
    return time


def late_segments(entry: Entry, video: Video | DeviceVideo) -> str | None:
    """What to say of segments that no frame can lie in."""
    last = _seconds(video, len(video) - 1)
    late = [segment for segment in entry.segments if segment.start > last]
    if not late:
        return None
    first = min(segment.start for segment in late)
    return (
        f"{entry.path}: {len(late)} of {len(entry.segments)} segments begin behind its last frame at {last:.2f} s, "
        f"first at {first:g} s; are times in seconds?"
    )


def frame_labels(entry: Entry, video: Video | DeviceVideo, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, or the label of the last segment that the frame lies in."""
    times = np.array([_seconds(video, int(frame)) for frame in frames])
    labels = np.zeros(len(frames), np.int64)
    for segment in entry.segments:
        labels[(times >= segment.start) & (times < segment.end)] = segment.label
    return labels
