"""The GPU's share of clips: its video engines decode them in threads of the trainer, beside the workers of the CPU.

a batch's clips ─┬─► workers ──────────────────────────► host memory ─ copy ─┬─► batch, in its order
                 └─► queue ─► a thread with a session ─► device memory ──────┘
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fulltilt.decode.video.device import DeviceVideo
from fulltilt.decode.video.limits import sessions_of
from fulltilt.decode.video.nvdec import library
from fulltilt.decode.video.reader import Known
from fulltilt.decode.video.sessions import Sessions
from fulltilt.decode.video.waiting import wait_asleep
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.clips.open_videos import OpenVideos

log = logging.getLogger("fulltilt.feed")

Key = tuple[int, int]
OPEN = 1
"""Videos that each thread keeps open, each with a session: sessions are used again, so that more would help little."""
AHEAD = 2
"""For each thread so many clips may lie on the device or be under way: workers are asked for batches further ahead."""
_REFUSED = 16
"""When so many files were refused and not one was taken, the engines are given no more."""


class Part:
    """Clips of one batch that the GPU decodes."""

    def __init__(self, keys: Sequence[Key], positions: Sequence[int], *, before: int = 0) -> None:
        self.before = before
        """Clips that were asked for before these."""
        self.keys, self.positions = list(keys), list(positions)
        """Which clips, and where they belong in the batch."""
        self.samples: list[Any] = [None] * len(keys)
        """As the source gives them, with pixels on the device; None where one was left out."""
        self.ready: list[torch.cuda.Event] = []
        self.dropped = False
        """Nobody wants it any more."""
        self._error: BaseException | None = None
        self._left, self._lock, self._done = len(keys), threading.Lock(), threading.Event()

    def fill(self, places: Sequence[int], samples: Sequence[Any], ready: torch.cuda.Event | None) -> None:
        with self._lock:
            for place, sample in zip(places, samples, strict=True):
                self.samples[place] = sample
            if ready is not None:
                self.ready.append(ready)
            self._count(len(places))

    def fail(self, count: int, error: BaseException | None) -> None:
        """So many of the clips will not come."""
        with self._lock:
            self._error = self._error or error
            self._count(count)

    def wait(self) -> None:
        """Until all of it is under way on the device; raises what one of the clips has raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error

    def _count(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self._done.set()


class ClipSide:
    """The engines of one device. Videos that they don't take are decoded by the CPU here, once, and then refused."""

    def __init__(self, source: VideoClips, device: torch.device, *, threads: int | None = None) -> None:
        """UnavailableError, with the reason, where there is no library or driver for it.

        Args:
            threads: clips that are decoded at once; None is as many as keep the engines busy.
        """
        library()
        threads = sessions_of(device.index or 0) if threads is None else threads
        if device.type == "cuda" and (problem := wait_asleep(device.index or 0)) is not None:
            log.info("threads that wait for %s keep their cores: %s", device, problem)
        self._source, self._device = source, device
        self._sessions = Sessions(threads)
        self._queue: queue.SimpleQueue[tuple[Part, list[int]] | None] = queue.SimpleQueue()
        self._refused: set[str] = set()
        self._taken = False
        self._closing = False
        self._asked = self._released = 0
        """Clips, in all."""
        self._room = threading.Condition()
        self.trouble: str | None = None
        """Why the engines are to be given nothing more."""
        self.samples, self.seconds = 0, 0.0
        """Clips so far, and the time that they took the threads."""
        self._threads = [
            threading.Thread(target=self._run, args=(_stream(device),), name=f"fulltilt-nvdec-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def takes(self, entry: int) -> bool:
        """Whether clips of this entry of the source may be left to the engines."""
        return self._source.entries[entry].path not in self._refused

    def submit(self, keys: Sequence[Key], positions: Sequence[int]) -> Part:
        """Have these clips decoded, those of one video in one pass."""
        part = Part(keys, positions, before=self._asked)
        self._asked += len(part.keys)
        by_entry: dict[int, list[int]] = {}
        for place, (_, number) in enumerate(part.keys):
            by_entry.setdefault(number // self._source.clips, []).append(place)
        for places in by_entry.values():
            self._queue.put((part, places))
        return part

    def release(self, part: Part) -> None:
        """The loop has it, or nobody wants it: others may take its room."""
        with self._room:
            self._released += len(part.keys)
            self._room.notify_all()

    def close(self) -> None:
        """Finish the clips that are being decoded, drop the others, and end."""
        with self._room:
            self._closing = True
            self._room.notify_all()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._sessions.close()

    def _run(self, stream: torch.cuda.Stream | None) -> None:
        videos = OpenVideos(OPEN, self._open, self._source.knowledge)
        try:
            while (task := self._queue.get()) is not None:
                part, places = task
                self._wait_for_room(part)
                if part.dropped or self._closing:
                    part.fail(len(places), None)
                    continue
                began = time.perf_counter()
                try:
                    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                        made = self._made([part.keys[place] for place in places], videos)
                        ready = None if stream is None else stream.record_event()
                except BaseException as error:  # comes out of the loop in its batch's place
                    part.fail(len(places), error)
                    continue
                part.fill(places, made, ready)
                self.samples, self.seconds = self.samples + len(places), self.seconds + time.perf_counter() - began
        finally:
            videos.close()

    def _wait_for_room(self, part: Part) -> None:
        """Parts are begun in the order in which they are taken, so that the next one to be taken never waits."""
        most = AHEAD * len(self._threads)
        with self._room:
            self._room.wait_for(lambda: part.before - self._released < most or part.dropped or self._closing)

    def _made(self, keys: list[Key], videos: OpenVideos[DeviceVideo]) -> list[Any]:
        path = self._source.entries[keys[0][1] // self._source.clips].path
        try:
            made = self._source.samples(keys, videos)
        except torch.OutOfMemoryError:
            self.trouble = "there is no GPU memory left for decoding videos"
            videos.close()
            return [self._there(sample) for sample in self._source.__getitems__(keys)]
        if (decision := videos.decision(path)) is not None and decision.value != "nvdec":
            self._refuse(path, decision.reason)
        else:
            self._taken = True
        return [self._there(sample) for sample in made]

    def _there(self, sample: Any) -> Any:
        """With its pixels on the device, wherever they come from; a label stays."""
        if sample is None or isinstance(sample, Tensor):
            return None if sample is None else sample.to(self._device)
        return sample[0].to(self._device), sample[1]

    def _open(self, path: str, known: Known | None) -> DeviceVideo:
        return DeviceVideo(
            Path(path), device=self._device, known=known, quality=self._source.quality, sessions=self._sessions
        )

    def _refuse(self, path: str, reason: str) -> None:
        first = not self._refused
        self._refused.add(path)
        if not self._taken and len(self._refused) >= min(_REFUSED, len(self._source.entries)):
            self.trouble = f"the GPU's engines took none of {len(self._refused)} videos ({reason})"
        elif first:
            log.warning("%s: the CPU decodes it, and others of which the GPU's engines say so", reason)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def pixels_of(sample: Any) -> Tensor:
    found: Tensor = sample if isinstance(sample, Tensor) else sample[0]
    return found


def label_of(sample: Any) -> Tensor | None:
    return None if isinstance(sample, Tensor) else torch.as_tensor(sample[1])
