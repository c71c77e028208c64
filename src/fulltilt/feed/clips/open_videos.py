"""Videos that are kept open, so that a clip of one that was used lately need not open it again. For one thread."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from fulltilt.decode.video.device import DeviceVideo
from fulltilt.decode.video.reader import Known, Video
from fulltilt.feed.clips.knowledge import KNOWN_FRAMES, Knowledge, Stamp
from fulltilt.machine.decision import Decision

Opened = TypeVar("Opened", Video, DeviceVideo)
PIXELS = 1920 * 1088
"""Of a video's pictures, on average of those that are open: a decoder of 3840×2160 holds 90 MB."""


class OpenVideos(Generic[Opened]):
    """At most so many, fewer of large ones; what was used longest ago is closed. What is known of a file stays while it
    is the same."""

    def __init__(
        self, most: int, open_one: Callable[[str, Known | None], Opened], knowledge: Knowledge | None = None
    ) -> None:
        self._most = most
        self._knowledge = knowledge or Knowledge()
        self._open_one: Callable[[str, Known | None], Opened] = open_one
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._before: OrderedDict[str, tuple[Stamp, Opened]] = OrderedDict()
        self._frames = 0
        """Of those."""
        self._ends: dict[str, int] = {}
        """The frame behind the last one that was taken."""
        # A video that stands somewhere holds itself: without this, decoders of a thread that has ended would stay until
        # the garbage collector comes by.
        weakref.finalize(self, _close_all, self._open).atexit = False

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, path: str) -> bool:
        """Whether it is open."""
        return path in self._open

    def outline(self, path: str) -> Opened:
        """For what it says of itself; it may be closed."""
        at, video = self._before.get(path, (None, None))
        return video if video is not None and at == stamp_of(path) else self.get(path)

    def get(self, path: str) -> Opened:
        """Open."""
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        while len(self._open) >= self._most:
            self._open.popitem(last=False)[1].close()
        stamp = stamp_of(path)
        video = self._open_one(path, self._knowledge.of(path, stamp))
        self._knowledge.add(path, stamp, video.known)
        self._open[path] = video
        while len(self._open) > 1 and self._pixels() > self._most * PIXELS:
            self._open.popitem(last=False)[1].close()
        self._keep(path, stamp, video)
        return video

    def _pixels(self) -> int:
        return sum(video.height * video.width for video in self._open.values())

    def _keep(self, path: str, stamp: Stamp, video: Opened) -> None:
        if path in self._before:
            self._frames -= len(self._before.pop(path)[1])
        self._before[path] = (stamp, video)
        self._frames += len(video)
        if self._frames <= KNOWN_FRAMES:
            return
        for other in [other for other in self._before if other not in self._open]:
            if self._frames <= KNOWN_FRAMES:
                return
            self._frames -= len(self._before.pop(other)[1])
            self._ends.pop(other, None)

    def goes_on(self, path: str, frames: Sequence[int]) -> bool:
        """Whether these frames could have been decoded on from the last ones: whoever takes them goes forward."""
        end, (_, video) = self._ends.get(path), self._before[path]
        first = min(frames)
        self._ends[path] = max(frames) + 1
        return end is not None and video.index.key_before(first) <= end <= first

    def decision(self, path: str) -> Decision[str] | None:
        """Who decodes it and why, as far as it says so."""
        video = self._open.get(path)
        return video.decision if isinstance(video, DeviceVideo) else None

    def forget(self, path: str) -> None:
        """It is not to be relied on."""
        if path in self._open:
            self._open.pop(path).close()

    def close(self) -> None:
        _close_all(self._open)


def _close_all(videos: OrderedDict[str, Opened]) -> None:
    while videos:
        videos.popitem()[1].close()


def stamp_of(path: str) -> Stamp:
    """Size and time of a file as it is now."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
