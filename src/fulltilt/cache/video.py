"""Videos in the same shards as images: their frames in parts, each a strip of frames one below the other.

A part is a record like any other, so that finding, checking, dropping and clearing work as they do for images. It is
found by the video's path and its own number, served only while the file bears the stamp that it had when it was read,
and knows the hash of the file. Frames are kept at `settings.target` of the video's size: the shorter side is `size`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fulltilt.cache.build import Failure, Progress, failures_of, opened
from fulltilt.cache.keys import NO_FILE, Key, hash_steadily, name_of, stamp_of
from fulltilt.cache.make import Pixels
from fulltilt.cache.manifest import holds
from fulltilt.cache.predict import Prediction, check_room, extrapolated, some
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.shard import RECORD_BYTES
from fulltilt.cache.store import Cache
from fulltilt.cache.writer import ShardWriter, Subject
from fulltilt.decode.video import Video, open_video
from fulltilt.decode.video.container import told_of
from fulltilt.errors import CacheError, DecodeError, InputError
from fulltilt.machine.cores import read_cores
from fulltilt.words import disk_size

PART: Final = 64
"""Frames of a part: a decoder's pass, and what lies in memory while it is made."""
_OPENED: Final = 64
"""Videos whose headers are read before a build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoReport:
    """What a build did."""

    videos: int
    present: int
    """Were there in full already."""
    frames: int
    """Decoded and written."""
    bytes: int
    """Of the pixels written."""
    failures: tuple[Failure, ...]
    """Videos that are not there, or not in full, and why."""
    seconds: float


@dataclass(frozen=True, slots=True)
class _Part:
    subject: Subject
    strip: Pixels
    frames: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """With one video."""

    number: int
    parts: int
    problem: str | None


def part_key(path: str | os.PathLike[str], part: int, stamp: tuple[int, ...], digest: bytes) -> Key:
    """Of a video's part: its number goes into the name."""
    name = hashlib.blake2b(name_of(path, None, digest), digest_size=16)
    name.update(f"frames of part {part}".encode())
    return Key(name.digest(), stamp + NO_FILE)


def cached_frames(
    cache: Cache,
    path: str,
    numbers: Sequence[int],
    *,
    count: int,
    size: tuple[int, int],
    window: tuple[slice, slice] = (slice(None), slice(None)),
) -> Pixels | None:
    """Frames of a video of `count`, N×H×W×3; None where one is missing, the file has changed or the size is another.

    Args:
        window: rows and columns that are wanted of each.
    """
    try:
        stamp = stamp_of(os.stat(path))
    except OSError:
        return None
    height, width = size
    rows, columns = window
    shape = (len(numbers), len(range(height)[rows]), len(range(width)[columns]), 3)
    out = np.empty(shape, np.uint8)
    strips: dict[int, Pixels] = {}
    for place, number in enumerate(numbers):
        part, at = divmod(number, PART)
        if part not in strips:
            entry = cache.find(part_key(path, part, stamp, cache.settings.digest))
            frames = min(PART, count - part * PART)
            if entry is None or (entry.height, entry.width, entry.channels) != (frames * height, width, 3):
                return None
            strips[part] = cache.pixels(entry).reshape(frames, height, width, 3)
        out[place] = strips[part][at, rows, columns]
    return out


def build_videos(
    folder: str | os.PathLike[str],
    paths: Sequence[str | os.PathLike[str]],
    *,
    settings: CacheSettings,
    workers: int | None = None,
    planned: Callable[[Prediction], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    waiting: Callable[[str], None] | None = None,
) -> VideoReport:
    """Bring every video's frames into the cache in `folder`; what is there stays, a build that was stopped goes on.

    `workers`: decoders, as many as there are usable cores if not given. `planned` hears the prediction before anything
    is written, `progress` after each part of a video, `waiting` a line to show when another build is at work.
    """
    if settings.channels != 3 or settings.quality != "exact":
        raise InputError("videos are kept with channels=3 and quality='exact'")
    began, place = time.monotonic(), Path(folder)
    wanted = list(dict.fromkeys(os.path.abspath(path) for path in paths))
    crew = workers or read_cores().usable
    at = Progress(total=len(wanted))
    present = frames = 0
    try:
        prediction = predict(place, wanted, settings, crew)
        check_room(place, prediction, None, noun="videos")
        with opened(place, settings, waiting=waiting) as waited:
            if waited:
                prediction = predict(place, wanted, settings, crew)
                check_room(place, prediction, None, noun="videos")
            if planned is not None:
                planned(prediction)
            cache, writer = Cache.open(place, settings), ShardWriter(place, settings.digest)
            try:
                for found in _in_threads(wanted, cache, crew):
                    if isinstance(found, _Part):
                        writer.add(found.subject, found.strip, None)
                        frames, at.bytes = frames + found.frames, at.bytes + found.strip.nbytes
                    elif found.problem is not None:
                        at.failures[found.number] = found.problem
                    else:
                        present += found.parts == 0
                        at.made += 1
                    if progress is not None:
                        progress(at)
            finally:
                writer.close()
    except OSError as error:
        raise CacheError(
            f"can't write into {place}: {error.strerror or error}, after {disk_size(at.bytes)}; what is there stays, "
            "and the same call goes on from it"
        ) from error
    return VideoReport(
        videos=len(wanted),
        present=present,
        frames=frames,
        bytes=at.bytes,
        failures=failures_of(wanted, at.failures),
        seconds=time.monotonic() - began,
    )


def predict(folder: Path, paths: Sequence[str], settings: CacheSettings, workers: int) -> Prediction:
    """From what the headers of some of them tell; a video that the cache has in part is one to be made."""
    cache = Cache(folder, settings) if holds(folder, settings) else None
    with ThreadPoolExecutor(workers) as pool:
        rooms = list(pool.map(lambda path: _room(path, settings, cache), some(paths, _OPENED)))
    whole = round(rooms.count(0) / len(rooms) * len(paths)) if rooms else 0
    return extrapolated(folder, rooms, of=len(paths), samples=len(paths) - whole, present=whole)


def _room(path: str, settings: CacheSettings, cache: Cache | None) -> int | None:
    """That a video's frames will take; None where it can't be opened, of which the build says why."""
    try:
        stamp = stamp_of(os.stat(path))
        begun = cache is not None and cache.find(part_key(path, 0, stamp, settings.digest)) is not None
        told = None if begun else told_of(Path(path))
        if told is not None:
            frames, height, width = told
            parts = -(-frames // PART)
        else:  # all packets are read
            with open_video(path) as video:
                absent = _absent(video, path, stamp, settings, cache)
                frames, parts = sum(len(_frames_of(part, video)) for part in absent), len(absent)
                height, width = video.height, video.width
    except (DecodeError, InputError, OSError):
        return None
    height, width = settings.target(height, width)
    return frames * height * width * 3 + parts * (RECORD_BYTES + len(os.fsencode(path)))


def _in_threads(paths: Sequence[str], cache: Cache, workers: int) -> Iterator[_Part | _Ended]:
    """Parts as they are made, a few ahead of whoever takes them; then the end of each video."""
    ahead: queue.Queue[_Part | _Ended] = queue.Queue(2 * workers)
    stopped = threading.Event()

    def put(item: _Part | _Ended) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ahead.put(item, timeout=0.2)
                return

    def work(number: int, path: str) -> None:
        parts = 0
        problem = None
        try:
            for part in _missing(path, cache):
                if stopped.is_set():
                    return
                put(part)
                parts += 1
        except (DecodeError, InputError, OSError) as error:
            problem = str(error).removeprefix(f"{path}: ")
        put(_Ended(number, parts, problem))

    with ThreadPoolExecutor(workers, thread_name_prefix="fulltilt-video") as pool:
        jobs = [pool.submit(work, number, path) for number, path in enumerate(paths)]
        left = len(paths)
        try:
            while left:
                try:
                    item = ahead.get(timeout=0.5)
                except queue.Empty:
                    for job in jobs:
                        if job.done():
                            job.result()  # what nobody expected comes out here
                    continue
                left -= isinstance(item, _Ended)
                yield item
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _missing(path: str, cache: Cache) -> Iterator[_Part]:
    """The parts of a video that the cache would not serve, decoded; then the first error, where some can't be."""
    settings = cache.settings
    digest = settings.digest
    with open_video(path) as video:
        numbers = _absent(video, path, stamp_of(os.stat(path)), settings, cache)
        if not numbers:
            return
        content, stamp = hash_steadily(path, digest)
        size = settings.target(video.height, video.width)
        damage: DecodeError | None = None
        for number in numbers:
            wanted = _frames_of(number, video)
            try:
                strip = video.frames(wanted, size=size).reshape(-1, size[1], 3)
            except DecodeError as error:
                damage = damage or error
                continue
            if stamp_of(os.stat(path)) != stamp:
                raise InputError(f"{path}: has changed while it was decoded: is it still being written?")
            key = part_key(path, number, stamp, digest)
            subject = Subject(name=key.name, content=content, stamp=key.stamp, image=os.fsencode(path), mask=None)
            yield _Part(subject, strip, len(wanted))
        if damage is not None:
            raise damage


def _absent(
    video: Video, path: str, stamp: tuple[int, ...], settings: CacheSettings, cache: Cache | None
) -> Sequence[int]:
    """The video's parts that the cache would not serve."""
    parts = range(-(-len(video) // PART))
    if cache is None:
        return parts
    return [number for number in parts if cache.find(part_key(path, number, stamp, settings.digest)) is None]


def _frames_of(part: int, video: Video) -> range:
    return range(part * PART, min(len(video), (part + 1) * PART))
