"""Clips of videos as a source: which frames each is made of, and their pixels.

A clip is drawn from (seed, epoch, number) alone, so an epoch that is resumed, or shared out among other ranks, has the
same clips. Clips of one video that fall into one batch are decoded in one pass. Pixels are uint8, scaled while colours
are converted; everything wider is made on the device.
"""

from __future__ import annotations

import csv
import logging
import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fulltilt.cache import Cache
from fulltilt.cache.video import cached_frames
from fulltilt.decode.video import Video, open_video
from fulltilt.errors import DecodeError, InputError

log = logging.getLogger(__name__)

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".ts", ".m4v", ".mpg", ".mpeg")
_PATH_COLUMNS = ("path", "video", "file", "filename")
_DRAWS = 0xC11B
"""Keeps these draws apart from all others of the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a video in which something happens; in seconds, the end not included."""

    start: float
    end: float
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A video, or the part of it that clips are taken from."""

    path: str
    label: int | None = None
    start: float | None = None
    end: float | None = None
    """In seconds; None is the video's own."""
    segments: tuple[Segment, ...] = ()


class VideoClips:
    """Clips of so many frames; nothing is opened before it is asked for.

    VideoClips("train/", length=16, size=(224, 224))       one class per subfolder, or no labels where there are none
    VideoClips("train.csv", …)                             columns path, label and, for parts of videos, start and end
    VideoClips("train.csv", temporal=True, …)              a label for every frame: 0, or that of the segment it lies in

    A sample is (T×H×W×3 uint8, label), (…, T labels) or the clip alone.
    """

    takes_epoch = True
    """Samples are asked for as (epoch, number)."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        length: int,
        size: tuple[int, int],
        stride: int = 1,
        clips: int = 1,
        jitter: bool = True,
        labels: Sequence[int | str] | None = None,
        classes: Sequence[str] | None = None,
        temporal: bool = False,
        seed: int = 0,
        on_error: Literal["raise", "skip"] = "raise",
        threads: int = 1,
        open_videos: int = 8,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            length: frames of a clip.
            size: height and width of what is given; a video is scaled to cover it, and its middle cut out.
            stride: frames from one of the clip to the next.
            clips: clips per video; each is taken from its own part of it, all parts of one length.
            jitter: draw where a clip begins in its part, anew in every epoch; otherwise its middle is taken.
            temporal: rows of a CSV are segments of their videos, and clips come with a label for every frame.
            on_error: "skip" leaves out clips that can't be decoded and logs why, once for each file; the feed's
                `stats()["skipped"]` counts them.
            threads: of each decoder.
            open_videos: decoders that each worker keeps open.
            cache: a folder that `fulltilt video cache` has filled: frames that it holds in the size that is
                needed are copied from it, others are decoded.
        """
        for name, value in (("length", length), ("stride", stride), ("clips", clips), ("open_videos", open_videos)):
            if value < 1:
                raise InputError(f"{name}: expected 1 or more, found {value}")
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error={on_error!r} must be 'raise' or 'skip'")
        self.length, self.size, self.stride, self.clips, self.jitter = length, size, stride, clips, jitter
        self.temporal, self.seed, self.on_error = temporal, seed, on_error
        self._threads, self._open_videos = threads, open_videos
        self._cache_folder = None if cache is None else os.path.abspath(cache)
        if self._cache_folder is not None:
            Cache.open(self._cache_folder)  # says at once what is wrong with it
        self.entries, self.classes = _entries(source, labels, classes, temporal=temporal)
        if not self.entries:
            raise InputError(f"no videos in {source!r}; looked for {', '.join(SUFFIXES)}")
        self._told = torch.zeros(len(self.entries), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        """Whether an entry's problem has been logged: all workers look at the same."""
        self._here = threading.local()

    def __len__(self) -> int:
        return len(self.entries) * self.clips

    def __getitem__(self, key: tuple[int, int] | int) -> Any:
        (sample,) = self.__getitems__([key])
        return sample

    def __getitems__(self, keys: Sequence[tuple[int, int] | int]) -> list[Any]:
        """Samples by (epoch, number), or by number alone; those of one video in one pass."""
        pairs = [key if isinstance(key, tuple) else (0, key) for key in keys]
        by_entry: dict[int, list[int]] = {}
        for place, (_, number) in enumerate(pairs):
            by_entry.setdefault(number // self.clips, []).append(place)
        found: list[Any] = [None] * len(pairs)
        for entry, places in sorted(by_entry.items()):
            try:
                made = self._clips(self.entries[entry], [pairs[place] for place in places])
            except (DecodeError, InputError, OSError) as error:
                self._forget(self.entries[entry].path)
                if self.on_error == "raise":
                    raise
                self._tell(entry, error)
                continue
            for place, sample in zip(places, made, strict=True):
                found[place] = sample
        return found

    @property
    def leaves_out(self) -> bool:
        """Batches may have fewer clips than were asked for, or be None where there is not one."""
        return self.on_error == "skip"

    def collate(self, samples: list[Any]) -> Any:
        """Stacked; clips that were left out are not there, and a batch without any is None."""
        there = [sample for sample in samples if sample is not None]
        if not there:
            return None
        if isinstance(there[0], Tensor):
            return torch.stack(there)
        return tuple(torch.stack([torch.as_tensor(sample[part]) for sample in there]) for part in range(2))

    def frames_of(self, entry: Entry, video: Video, epoch: int, number: int) -> NDArray[np.int64]:
        """The frames of a clip: from its own part of the video; where that is too short, its last frame is repeated."""
        first, last = _range(entry, video)
        part = number % self.clips
        begin = first + (last + 1 - first) * part // self.clips
        end = max(begin, first + (last + 1 - first) * (part + 1) // self.clips - 1)
        latest = max(begin, end - (self.length - 1) * self.stride)
        start = (begin + latest) // 2
        if self.jitter and latest > begin:
            words = np.random.Philox(key=[self.seed & (1 << 64) - 1, _DRAWS], counter=[number, epoch, 0, 0])
            start = int(np.random.Generator(words).integers(begin, latest + 1))
        return np.minimum(start + self.stride * np.arange(self.length), end)

    def _clips(self, entry: Entry, pairs: Sequence[tuple[int, int]]) -> list[Any]:
        video = self._outline(entry.path)
        wanted = [self.frames_of(entry, video, epoch, number) for epoch, number in pairs]
        cover, top, left = _cover((video.height, video.width), self.size)
        numbers = np.concatenate(wanted).tolist()
        pixels = self._cached(entry.path, video, numbers, cover)
        if pixels is None:
            pixels = self._video(entry.path).frames(numbers, size=cover)
        pixels = pixels[:, top : top + self.size[0], left : left + self.size[1]]
        shape = (len(pairs), self.length, *self.size, 3)
        given = torch.from_numpy(np.ascontiguousarray(pixels).reshape(shape))
        return [self._sample(entry, video, clip, frames) for clip, frames in zip(given.unbind(), wanted, strict=True)]

    def _sample(self, entry: Entry, video: Video, clip: Tensor, frames: NDArray[np.int64]) -> Any:
        if self.temporal:
            return clip, torch.from_numpy(_frame_labels(entry, video, frames))
        return clip if entry.label is None else (clip, torch.tensor(entry.label))

    def _outline(self, path: str) -> Video:
        """For what it says of itself; it may be closed."""
        at, video = self._before.get(path, (None, None))
        return video if video is not None and at == _stamp(path) else self._video(path)

    def _video(self, path: str) -> Video:
        """Open, and kept open; each thread has its own. What is known of a file stays."""
        kept: OrderedDict[str, Video] | None = getattr(self._here, "videos", None)
        if kept is None:
            kept = self._here.videos = OrderedDict()
        if path in kept:
            kept.move_to_end(path)
            return kept[path]
        while len(kept) >= self._open_videos:
            kept.popitem(last=False)[1].close()
        stamp = _stamp(path)
        at, before = self._before.get(path, (None, None))
        known = before.known if before is not None and at == stamp else None
        video = open_video(path, threads=self._threads, known=known)
        self._before[path] = (stamp, video)
        kept[path] = video
        return video

    @property
    def _before(self) -> dict[str, tuple[tuple[int, int], Video]]:
        """Videos of this thread, open or closed, with the size and time that their files had."""
        found: dict[str, tuple[tuple[int, int], Video]] | None = getattr(self._here, "before", None)
        if found is None:
            found = self._here.before = {}
        return found

    def _cached(
        self, path: str, video: Video, numbers: Sequence[int], size: tuple[int, int]
    ) -> NDArray[np.uint8] | None:
        if self._cache_folder is None:
            return None
        cache: Cache | None = getattr(self._here, "cache", None)
        if cache is None:
            cache = self._here.cache = Cache.open(self._cache_folder)
        return cached_frames(cache, path, numbers, count=len(video), size=size)

    def _tell(self, entry: int, error: BaseException) -> None:
        if not self._told[entry]:
            self._told[entry] = True
            log.warning("left out: %s", error)

    def _forget(self, path: str) -> None:
        kept: OrderedDict[str, Video] | None = getattr(self._here, "videos", None)
        if kept is not None and path in kept:
            kept.pop(path).close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._here = threading.local()


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _cover(video: tuple[int, int], size: tuple[int, int]) -> tuple[tuple[int, int], int, int]:
    """The size to scale to so that `size` is covered, and where in it the middle part begins."""
    scale = max(size[0] / video[0], size[1] / video[1])
    height, width = (max(side, round(scale * of)) for side, of in zip(size, video, strict=True))
    return (height, width), (height - size[0]) // 2, (width - size[1]) // 2


def _range(entry: Entry, video: Video) -> tuple[int, int]:
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


def _seconds(video: Video, frame: int) -> float:
    time = video.time_of(frame)
    if time is None:
        raise InputError(f"{video.path}: has no times, so that start and end mean nothing")
    return time


def _frame_labels(entry: Entry, video: Video, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, or the label of the last segment that the frame lies in."""
    times = np.array([_seconds(video, int(frame)) for frame in frames])
    labels = np.zeros(len(frames), np.int64)
    for segment in entry.segments:
        labels[(times >= segment.start) & (times < segment.end)] = segment.label
    return labels


def _entries(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    labels: Sequence[int | str] | None,
    classes: Sequence[str] | None,
    *,
    temporal: bool,
) -> tuple[list[Entry], list[str] | None]:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            rows = _from_folder(path)
        elif path.suffix.lower() == ".csv":
            rows = _from_csv(path)
        else:
            raise InputError(f"{path} is neither a folder nor a .csv file; for single files pass a list of paths")
    else:
        paths = [os.fspath(one) for one in source]
        if labels is not None and len(labels) != len(paths):
            raise InputError(f"{len(labels)} labels for {len(paths)} videos; there must be as many")
        rows = [(one, None if labels is None else labels[at], None, None) for at, one in enumerate(paths)]
    names = {label for _, label, _, _ in rows if isinstance(label, str)}
    known = list(classes) if classes is not None else sorted(names) if names else None
    first = 1 if temporal else 0  # of a frame, 0 says that nothing happens

    def number(label: int | str | None) -> int | None:
        if not isinstance(label, str):
            return label
        if known is None or label not in known:
            raise InputError(f"classes has no {label}; it has {', '.join((known or [])[:20])}")
        return known.index(label) + first

    if not temporal:
        return [Entry(path=p, label=number(label), start=a, end=b) for p, label, a, b in rows], known
    segments: dict[str, list[Segment]] = {}
    for path_, label, start, end in rows:
        if (value := number(label)) is None or start is None or end is None:
            raise InputError(f"{path_}: temporal=True needs a label, a start and an end in every row")
        segments.setdefault(path_, []).append(Segment(start=start, end=end, label=value))
    return [Entry(path=path_, segments=tuple(found)) for path_, found in segments.items()], known


Row = tuple[str, int | str | None, float | None, float | None]


def _from_folder(folder: Path) -> list[Row]:
    """Files of the folder itself, or of its subfolders, each of which is a class."""
    direct = sorted(str(file) for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if direct:
        return [(path, None, None, None) for path in direct]
    return [
        (str(file), sub.name, None, None)
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and not sub.name.startswith(".")
        for file in sorted(sub.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]


def _from_csv(path: Path) -> list[Row]:
    """Paths in a CSV are relative to its own folder."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        name = next((name for name in _PATH_COLUMNS if name in columns), None)
        if name is None:
            raise InputError(
                f"{path}: no column named {', '.join(_PATH_COLUMNS)}; found {', '.join(columns) or 'none'}"
            )
        lines = list(reader)
    return [
        (
            str(path.parent / line[name]),
            _label(line.get("label")),
            _time(path, number, line.get("start")),
            _time(path, number, line.get("end")),
        )
        for number, line in enumerate(lines, start=2)
    ]


def _label(text: str | None) -> int | str | None:
    if text is None or not text.strip():
        return None
    return int(text) if text.strip().lstrip("-").isdigit() else text.strip()


def _time(path: Path, line: int, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: a time in seconds was expected, found {text!r}") from None
