"""Clips of videos as a source: which frames each is made of, and their pixels.

A clip is drawn from (seed, epoch, number) alone, so an epoch that is resumed, or shared out among other ranks, has the
same clips. Clips of one video that fall into one batch are decoded in one pass. Pixels are uint8, scaled while colours
are converted; everything wider is made on the device.
"""

from __future__ import annotations

import copy
import itertools
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from fulltilt.cache import Cache
from fulltilt.cache.manifest import MANIFEST
from fulltilt.cache.video import cached_frames
from fulltilt.decode.video import Video, open_video
from fulltilt.decode.video.device import DeviceVideo
from fulltilt.decode.video.priority import give_way
from fulltilt.decode.video.reader import MOST_THREADS, sides_of
from fulltilt.errors import CacheError, DecodeError, InputError
from fulltilt.feed.clips.entries import Entry, Segment, entries_of
from fulltilt.feed.clips.knowledge import Knowledge
from fulltilt.feed.clips.open_videos import OpenVideos
from fulltilt.feed.clips.times import frame_labels, frames_within, late_segments
from fulltilt.feed.order import random_words

log = logging.getLogger(__name__)

__all__ = ["Entry", "Segment", "VideoClips"]
_DRAWS = 0xC11B
"""Keeps these draws apart from all others of the same seed."""
_LINES = 128
"""Of the table of frames, for worker processes, by their numbers, and as many for threads. Nobody waits for anybody: a
lock that a thread holds while a process is forked would stay locked there."""


class Frames(NamedTuple):
    """How many, over all workers."""

    decoded: int
    given: int
    """In clips."""


class VideoClips:
    """Clips of so many frames; nothing is opened before it is asked for.

    VideoClips("train/", length=16, size=(224, 224))       one class per subfolder, or no labels where there are none
    VideoClips("train.csv", …)                             columns path, label (or class) and, for parts, start and end
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
        quality: Literal["exact", "fast"] = "exact",
        threads: int | Literal["auto"] = "auto",
        together: int = 1,
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
            labels: of the videos, in their order: whole numbers, or names. Those of a folder or CSV are not used then.
            classes: names in the order of their numbers. For validation, give the training clips' `classes`.
            temporal: rows of a CSV are segments of their videos, and clips come with a label for every frame. A row
                without label, start and end names a video in which nothing happens.
            on_error: "skip" leaves out clips that can't be decoded and logs why, once for each file; the feed's
                `stats()["skipped"]` counts them.
            quality: "fast" decodes and scales more quickly; pixels differ slightly. Only so the feed looks for a share
                that the GPU decodes, whose pixels differ as well.
            threads: of each decoder; "auto" leaves it to the feed, which measures; without one it is 1.
            together: so many clips of a video come one behind the other in a shuffled order and are decoded in one
                pass: cheaper where key frames are far apart, but a batch has fewer videos. 1 shuffles all clips alike.
            open_videos: decoders that each worker keeps open; fewer where videos are larger than 1920×1088.
            cache: a folder that `fulltilt video cache` has filled: frames that it holds in the size that is
                needed are copied from it, others are decoded.
        """
        counts = {"length": length, "stride": stride, "clips": clips, "open_videos": open_videos, "together": together}
        for name, value in counts.items():
            if not _is_count(value):
                raise InputError(f"{name}: expected 1 or more, found {value!r}")
        if on_error not in ("raise", "skip"):
            raise InputError(f"on_error={on_error!r} must be 'raise' or 'skip'")
        if quality not in ("exact", "fast"):
            raise InputError(f"quality={quality!r} must be 'exact' or 'fast'")
        if threads != "auto" and not (_is_count(threads) and threads <= MOST_THREADS):
            raise InputError(f"threads: expected 1 to {MOST_THREADS}, or 'auto', found {threads!r}")
        self.quality, self.threads, self.together = quality, threads, min(together, clips)
        self.length, self.stride, self.clips, self.jitter = length, stride, clips, jitter
        self.size = sides_of(size)
        self.temporal, self.seed, self.on_error = temporal, seed, on_error
        self._open_videos = open_videos
        self._cache_folder = None if cache is None else os.path.abspath(cache)
        if self._cache_folder is not None:
            if not os.path.exists(os.path.join(self._cache_folder, MANIFEST)):
                raise CacheError(f"{cache} holds no cache; make one with `fulltilt video cache SOURCE {cache}`")
            Cache.open(self._cache_folder)  # says at once what is wrong with it
        self.entries, self.classes = entries_of(source, labels, classes, temporal=temporal)
        self._told = _flags(len(self.entries) + 1)
        """Whether an entry's problem has been logged, and the cache's behind them: all workers look at the same."""
        self._frames = torch.zeros((2 * _LINES, 2), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._here, self._threads = threading.local(), itertools.count()
        self.knowledge = Knowledge()

    def __len__(self) -> int:
        return len(self.entries) * self.clips

    def __getitem__(self, key: tuple[int, int] | int) -> Any:
        (sample,) = self.__getitems__([key])
        return sample

    def __getitems__(self, keys: Sequence[tuple[int, int] | int]) -> list[Any]:
        """Samples by (epoch, number), or by number alone; those of one video in one pass."""
        return self.samples(keys, self._videos())

    def samples(
        self, keys: Sequence[tuple[int, int] | int], videos: OpenVideos[Video] | OpenVideos[DeviceVideo]
    ) -> list[Any]:
        """The same, with pixels where these videos have them."""
        pairs = [key if isinstance(key, tuple) else (0, key) for key in keys]
        by_entry: dict[int, list[int]] = {}
        for place, (_, number) in enumerate(pairs):
            by_entry.setdefault(number // self.clips, []).append(place)
        found: list[Any] = [None] * len(pairs)
        for entry, places in sorted(by_entry.items()):
            made = self._of_entry(entry, [pairs[place] for place in places], videos)
            for place, sample in zip(places, made, strict=True):
                found[place] = sample
        return found

    def _of_entry(
        self, entry: int, pairs: Sequence[tuple[int, int]], videos: OpenVideos[Video] | OpenVideos[DeviceVideo]
    ) -> list[Any]:
        """Clips of one entry, in one pass; None for those that can't be decoded, where they are left out."""
        path = self.entries[entry].path
        try:
            return self._clips(entry, pairs, videos)
        except (DecodeError, InputError, OSError) as error:
            opened = path in videos
            videos.forget(path)
            if self.on_error == "raise":
                if isinstance(error, DecodeError):
                    hint = "on_error='skip' goes on without such clips"
                    raise DecodeError(f"{error}. {hint}", problem=error.problem) from error
                raise
            if opened and len(pairs) > 1:  # one of them is damaged, which is not the others' fault
                return [sample for pair in pairs for sample in self._of_entry(entry, [pair], videos)]
            self._tell(entry, f"left out: {error}")
            return [None] * len(pairs)

    def of(self, entries: Sequence[int], *, jitter: bool | None = None) -> VideoClips:
        """The same clips of some of the videos; `jitter`, unless it is None, in place of this one's."""
        part = copy.copy(self)
        part.knowledge = self.knowledge
        part.entries = [self.entries[number] for number in entries]
        part._told = _flags(len(part.entries) + 1)
        part._frames = torch.zeros_like(self._frames).share_memory_()  # type: ignore[no-untyped-call]
        part.jitter = self.jitter if jitter is None else jitter
        return part

    def with_threads(self, threads: int) -> VideoClips:
        """The same clips from decoders of so many threads."""
        if threads == self.threads:
            return self
        like = copy.copy(self)
        like.threads, like.knowledge = threads, self.knowledge
        return like

    @property
    def leaves_out(self) -> bool:
        """Batches may have fewer clips than were asked for, or be None where there is not one."""
        return self.on_error == "skip"

    def collate(self, samples: list[Any]) -> Any:
        """Stacked; clips that were left out are not there, and a batch without any is None."""
        there = [sample for sample in samples if sample is not None]
        if not there:
            return None
        # In a worker process torch's own function stacks in memory that is shared already: one copy less.
        if isinstance(there[0], Tensor):
            return default_collate(there)
        return tuple(default_collate([sample[part] for sample in there]) for part in range(2))

    def collate_told(self, samples: list[Any]) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Clips, labels, and which samples they are of; what was left out is in neither."""
        there = torch.tensor([sample is not None for sample in samples], dtype=torch.bool)
        batch = self.collate(samples)
        pixels, labels = batch if isinstance(batch, tuple) else (batch, None)
        return pixels, labels, there

    def instead_of(self, epoch: int, number: int) -> tuple[Any, int]:
        """A batch of one clip, and its number: the next one behind this that can be decoded, of another video."""
        for step in range(1, len(self.entries)):
            other = (number + step * self.clips) % len(self)
            batch = self.collate([self[epoch, other]])
            if batch is not None:
                return batch, other
        raise InputError(f"not one of {len(self.entries)} videos has a clip that can be decoded")

    @property
    def frames(self) -> Frames:
        """Decoded so far, and given in clips: what key frames that are far apart cost."""
        decoded, given = self._frames.sum(0).tolist()
        return Frames(decoded, given)

    def figures(self) -> dict[str, Any]:
        """For a feed's statistics."""
        decoded, given = self.frames
        return {"frames_decoded_per_frame": decoded / given if given else None}

    @property
    def has_cache(self) -> bool:
        return self._cache_folder is not None

    def frames_of(self, entry: Entry, video: Video | DeviceVideo, epoch: int, number: int) -> NDArray[np.int64]:
        """The frames of a clip: from its own part of the video; where that is too short, its last frame is repeated."""
        first, last = frames_within(entry, video)
        part = number % self.clips
        begin = first + (last + 1 - first) * part // self.clips
        end = max(begin, first + (last + 1 - first) * (part + 1) // self.clips - 1)
        latest = max(begin, end - (self.length - 1) * self.stride)
        start = (begin + latest) // 2
        if self.jitter and latest > begin:
            words = random_words(self.seed, _DRAWS, (number, epoch, 0))
            start = int(np.random.Generator(words).integers(begin, latest + 1))
        return np.minimum(start + self.stride * np.arange(self.length), end)

    def _clips(
        self,
        number: int,
        pairs: Sequence[tuple[int, int]],
        videos: OpenVideos[Video] | OpenVideos[DeviceVideo],
    ) -> list[Any]:
        entry = self.entries[number]
        path, outline = entry.path, videos.outline(entry.path)
        if self.temporal and (late := late_segments(entry, outline)) is not None:
            self._tell(number, late)
        wanted = [self.frames_of(entry, outline, *pair) for pair in pairs]
        cover, top, left = _cover((outline.height, outline.width), self.size)
        numbers = np.concatenate(wanted).tolist()
        window = slice(top, top + self.size[0]), slice(left, left + self.size[1])
        pixels: NDArray[np.uint8] | Tensor | None = self._cached(path, outline, numbers, cover, window)
        if pixels is None:
            stay = videos.goes_on(path, numbers)
            video = videos.get(path)
            before = video.decoded
            pixels = video.frames(numbers, size=cover, stay=stay)
            self._count(video.decoded - before, len(numbers))
            pixels = pixels[:, *window]
        if not isinstance(pixels, Tensor):
            pixels = torch.from_numpy(np.ascontiguousarray(pixels))
        clips = pixels.reshape(len(pairs), self.length, *self.size, 3).unbind()
        return [self._sample(entry, outline, clip, frames) for clip, frames in zip(clips, wanted, strict=True)]

    def _sample(self, entry: Entry, video: Video | DeviceVideo, clip: Tensor, frames: NDArray[np.int64]) -> Any:
        if self.temporal:
            return clip, torch.from_numpy(frame_labels(entry, video, frames))
        return clip if entry.label is None else (clip, torch.tensor(entry.label))

    def _videos(self) -> OpenVideos[Video]:
        """This thread's own."""
        found: OpenVideos[Video] | None = getattr(self._here, "videos", None)
        if found is None:
            if torch.utils.data.get_worker_info() is not None:
                give_way()
            threads, quality = 1 if self.threads == "auto" else self.threads, self.quality
            found = self._here.videos = OpenVideos(
                self._open_videos,
                lambda path, known: open_video(path, threads=threads, known=known, quality=quality),
                self.knowledge,
            )
        return found

    def _count(self, decoded: int, given: int) -> None:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            line = worker.id % _LINES
        else:
            if not hasattr(self._here, "number"):
                self._here.number = next(self._threads)  # one step of C code: threads can share it
            line = _LINES + self._here.number % _LINES
        self._frames[line] += torch.tensor([decoded, given])

    def _cached(
        self,
        path: str,
        video: Video | DeviceVideo,
        numbers: Sequence[int],
        size: tuple[int, int],
        window: tuple[slice, slice],
    ) -> NDArray[np.uint8] | None:
        if self._cache_folder is None:
            return None
        cache: Cache | None = getattr(self._here, "cache", None)
        if cache is None:
            cache = self._here.cache = Cache.open(self._cache_folder)
        found = cached_frames(cache, path, numbers, count=len(video), size=size, window=window)
        kept = cache.settings.target(video.height, video.width)
        if found is None and kept != size:
            self._tell(
                len(self.entries),
                f"{self._cache_folder} has frames of {path} as {kept[0]}×{kept[1]}, and clips of "
                f"{self.size[0]}×{self.size[1]} need {size[0]}×{size[1]}: they are decoded, as others of such a size",
            )
        return found

    def _tell(self, entry: int, what: str) -> None:
        if not self._told[entry]:
            self._told[entry] = True
            log.warning("%s", what)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_here", "_threads", "knowledge")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._here, self._threads = threading.local(), itertools.count()
        self.knowledge = Knowledge()


def _flags(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call, no-any-return]


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and bool(value >= 1)


def _cover(video: tuple[int, int], size: tuple[int, int]) -> tuple[tuple[int, int], int, int]:
    """The size to scale to so that `size` is covered, and where in it the middle part begins."""
    fits = 0 if size[0] * video[1] >= size[1] * video[0] else 1
    # Rounded as a cache's sizes are: 113.5 rows must be as many there as here.
    height, width = (max(side, round(of * size[fits] / video[fits])) for side, of in zip(size, video, strict=True))
    return (height, width), (height - size[0]) // 2, (width - size[1]) // 2
