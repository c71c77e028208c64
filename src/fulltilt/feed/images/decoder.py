"""A decoder process: takes tasks, reads files, decodes them straight into the batch's slot, reports.

It imports no torch and knows nothing of training, so it starts in a moment and its interpreter lock is its own: however
busy the decoders are, the trainer's thread launches kernels undisturbed. Run by `pool.py` as `python -m`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import sys
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache import Cache, CacheSettings
from fulltilt.cache.keys import stamp_of
from fulltilt.cache.make import make
from fulltilt.decode import Quality, decode_into, decode_mask_into, probe
from fulltilt.decode.header import Header
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.decode.mask import told_of_mask
from fulltilt.errors import CacheError, FulltiltError
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.kept import Kept, Mode, locked
from fulltilt.feed.images.slot import Slot, Status
from fulltilt.feed.images.source import is_in_memory, read_file, seems_cold
from fulltilt.feed.images.tally import Tally
from fulltilt.feed.images.wire import Report, Task, receive_task, send_report

Bytes = NDArray[np.uint8]

_LOOK_UP_SECONDS = 2.0
_LOOKS_AGAIN = 16
"""Cold files that each decoder opens once more, to see whether the system keeps them."""
_NO_MASK = (0, 0, 0, 0)
_NICE = 10
"""Where cores are short, the trainer's threads come first: a kernel launched late costs more than a file read late."""


class Desk:
    """What each decoder is at, and which tasks have been taken, in memory that outlives the decoders.

    Taking a task from the pipe and noting it is done under a lock, which the kernel takes back when its holder dies. So
    whoever holds it can tell what was sent, is no longer in the pipe and was noted by nobody: that is lost.
    """

    COLUMNS = 6
    CLAIMS = 8192
    """Numbers of tasks that are remembered; never nearly so many are under way."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self._claims = np.ndarray((self.CLAIMS,), np.int64, self._map)
        start = self._claims.nbytes
        rows = (len(self._map) - start) // (8 * self.COLUMNS)
        self._lines = np.ndarray((rows, self.COLUMNS), np.int64, self._map, start)

    @classmethod
    def create(cls, workers: int) -> Desk:
        fd = os.memfd_create("fulltilt-desk", os.MFD_CLOEXEC)
        os.ftruncate(fd, 8 * (cls.CLAIMS + max(workers, 1) * cls.COLUMNS))
        desk = cls(fd)
        desk._claims[:] = -1
        desk._lines[:, 0] = -1
        return desk

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else takes a task meanwhile."""
        return locked(self.fd)

    def claim(self, number: int) -> None:
        """A task is in somebody's hands."""
        self._claims[number % self.CLAIMS] = number

    def is_claimed(self, number: int) -> bool:
        return bool(self._claims[number % self.CLAIMS] == number)

    def write(self, worker: int, task: Task, position: int) -> None:
        self._lines[worker] = (*task, position)

    def clear(self, worker: int) -> None:
        self._lines[worker, 0] = -1

    def read(self, worker: int) -> tuple[Task, int] | None:
        """The task and the position under way, or None when the decoder was between tasks."""
        *task, position = (int(n) for n in self._lines[worker])
        return None if task[0] < 0 else (Task(*task), position)

    def close(self) -> None:
        del self._lines, self._claims
        self._map.close()
        os.close(self.fd)


class Decoder:
    """One process's work."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._worker: int = options["worker"]
        self._tasks: int = options["tasks"]
        self._reports: int = options["reports"]
        self._parent: int = options["parent"]
        self._quality: Quality = options["quality"]
        self._channels: int = options["channels"]
        self._catalog = Catalog(options["catalog"])
        self._slots = [Slot(fd, options["samples"]) for fd in options["slots"]]
        self._desk = Desk(options["desk"])
        self._line = Tally(options["tally"]).line(self._worker)
        self._looks = _LOOKS_AGAIN
        self._cache = None if options["cache"] is None else Cache.open(options["cache"])
        self._kept = None if options["kept"] is None else Kept(options["kept"], len(self._catalog))
        self._folder: str | None = options["cache_to_come"]
        self._mode = Mode.NOTHING

    def run(self) -> None:
        """Until told to stop, or until there is nobody to work for."""
        waiting = select.epoll()
        # Exclusive: a task wakes one decoder. To wake all of them takes ten times as long, of the trainer's thread.
        waiting.register(self._tasks, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        while True:
            if not waiting.poll(_LOOK_UP_SECONDS) and os.getppid() != self._parent:
                return
            try:
                task = self._take()  # also when nothing woke us: whoever was woken may have died of something else
            except BlockingIOError:
                continue  # another was faster
            if task is None or task.slot < 0:
                return
            self._do(task)

    def _take(self) -> Task | None:
        """A task, noted before anybody else can look for one. Noted first, then claimed: what is noted is not lost."""
        with self._desk.locked():
            task = receive_task(self._tasks)
            if task is not None:
                self._desk.write(self._worker, task, task.first)
                self._desk.claim(task.number)
            return task

    def _do(self, task: Task) -> None:
        slot = self._slots[task.slot]
        slot.refresh()
        if self._kept is not None and self._kept.mode is not self._mode:
            self._change(self._kept.mode)
        fine = 0
        for position in range(task.first, task.first + task.samples):
            self._desk.write(self._worker, task, position)
            try:
                slot.status[position] = self._sample(slot, position)
                fine += 1
            except (FulltiltError, OSError) as error:
                image = self._catalog.image(int(slot.index[position]))
                self._report(task, position, 1, _cause(error, image))
                slot.status[position] = Status.FAILED
        if fine:
            self._report(task, task.first, fine)
        self._desk.clear(self._worker)

    def _change(self, mode: Mode) -> None:
        """The trainer has decided what is kept."""
        self._mode = mode
        if mode is Mode.DISK and self._folder is not None:
            with contextlib.suppress(CacheError):  # somebody has cleared it since: then without
                self._cache = Cache.open(self._folder, CacheSettings(channels=self._channels, quality=self._quality))

    def _sample(self, slot: Slot, position: int) -> Status:
        number = int(slot.index[position])
        image = self._catalog.image(number)
        mask = self._catalog.mask(number) if self._catalog.has_masks else None
        if self._cache is not None:
            return self._from_cache(self._cache, slot, position, image, mask)
        if self._kept is not None and self._mode in (Mode.ENCODED, Mode.DECODED):
            return self._from_memory(self._kept, slot, position, number, image, mask)
        data, labels, _ = self._read(image, mask)
        return self._made(slot, position, data, labels)

    def _read(
        self, image: str, mask: str | None, *, stamped: bool = False
    ) -> tuple[bytes, bytes | None, tuple[int, ...] | None]:
        """A sample's files, and the stamp that belongs to them."""
        started = perf_counter()
        first = read_file(image, stamped=stamped)
        second = None if mask is None else read_file(mask, stamped=stamped)
        seconds = perf_counter() - started
        size = len(first.data) + (0 if second is None else len(second.data))
        self._line.read(size, seconds, cold=seems_cold(size, seconds) if first.cold is None else first.cold)
        if first.cold and self._looks:
            self._looks -= 1
            if (there := is_in_memory(image)) is not None:
                self._line.looked_again(there=there)
        if second is None:
            return first.data, None, None if first.stamp is None else first.stamp + _NO_MASK
        stamp = None if first.stamp is None or second.stamp is None else first.stamp + second.stamp
        return first.data, second.data, stamp

    def _made(self, slot: Slot, position: int, image: bytes, mask: bytes | None) -> Status:
        if slot.status[position] == Status.WAITING_AS_FILE:
            header = probe(image)
            if cpu_reason(header, memoryview(image)) is None:
                return self._as_file(slot, position, image, header, mask)
        return self._decoded(slot, position, image, mask)

    def _from_cache(self, cache: Cache, slot: Slot, position: int, image: str, mask: str | None) -> Status:
        started = perf_counter()
        entry = cache.find(cache.key(image, mask))
        if entry is not None:
            with contextlib.suppress(CacheError):  # a shard that has gone since is one that lacks the sample
                status = self._copied(slot, position, cache.pixels(entry), cache.mask(entry))
                if status is Status.DONE:
                    self._line.copied(_since(started))
                return status
        # What is not in the cache is made as it would have been, so that a sample looks alike in every epoch.
        data, labels, _ = self._read(image, mask)
        started = perf_counter()
        status = self._copied(slot, position, *make(data, labels, cache.settings))
        if status is Status.DONE:
            self._line.decoded(_pixel_bytes(slot, position, cache.settings.channels, mask), _since(started))
        return status

    def _from_memory(self, kept: Kept, slot: Slot, position: int, number: int, image: str, mask: str | None) -> Status:
        """Copied if some decoder has kept it and its files have not changed; otherwise made, and kept."""
        started = perf_counter()
        whole = self._mode is Mode.DECODED
        found = kept.find(number, _stamp(image, mask))
        if found is not None and whole:
            room = self._room(slot, position, (found.height, found.width), found.image_bytes, masked=mask is not None)
            if room is None:
                return Status.NO_ROOM
            kept.read_into(found, room)
            self._line.copied(_since(started))
            return Status.DONE
        stamp = None
        if found is not None:
            data, labels = kept.read(found)
            self._line.copied(_since(started))
        else:
            data, labels, stamp = self._read(image, mask, stamped=True)
        status = self._made(slot, position, data, labels)
        if stamp is not None and status is Status.DONE:
            height, width = (int(side) for side in slot.size[position])
            if not whole:
                kept.keep(number, data, labels, (height, width), stamp)
            elif not slot.length[position]:  # pixels, not a file for the GPU
                start, middle = int(slot.offset[position]), int(slot.mask_offset[position])
                pixels, drawn = slot.data[start:middle], slot.data[middle : middle + height * width]
                kept.keep(number, pixels, None if mask is None else drawn, (height, width), stamp)
        return status

    def _decoded(self, slot: Slot, position: int, image: bytes, mask: bytes | None) -> Status:
        started = perf_counter()
        header = probe(image)
        size = header.height, header.width
        room = self._room(slot, position, size, size[0] * size[1] * self._channels, masked=mask is not None)
        if room is None:
            return Status.NO_ROOM
        pixels, labels = room
        decode_into(image, pixels, header=header, channels=self._channels, quality=self._quality)
        if mask is not None:
            with told_of_mask():
                decode_mask_into(mask, labels, size, dtype=np.uint8)
        self._line.decoded(len(pixels) + len(labels), _since(started))
        return Status.DONE

    def _as_file(self, slot: Slot, position: int, image: bytes, header: Header, mask: bytes | None) -> Status:
        """The file itself, for the GPU to decode; its mask is decoded here."""
        size = header.height, header.width
        room = self._room(slot, position, size, len(image), masked=mask is not None)
        if room is None:
            return Status.NO_ROOM
        file, labels = room
        file[...] = np.frombuffer(image, np.uint8)
        if mask is not None:
            with told_of_mask():
                decode_mask_into(mask, labels, size, dtype=np.uint8)
        slot.length[position], slot.turn[position] = len(image), header.orientation
        return Status.DONE

    def _copied(self, slot: Slot, position: int, image: Bytes, mask: Bytes | None) -> Status:
        height, width, _ = image.shape
        room = self._room(slot, position, (height, width), image.size, masked=mask is not None)
        if room is None:
            return Status.NO_ROOM
        pixels, labels = room
        pixels.reshape(image.shape)[...] = image
        if mask is not None:
            labels.reshape(mask.shape)[...] = mask
        return Status.DONE

    def _room(
        self, slot: Slot, position: int, size: tuple[int, int], image_bytes: int, *, masked: bool
    ) -> tuple[Bytes, Bytes] | None:
        """Memory for a sample's image and labels in the slot, written down in its tables."""
        labels_bytes = size[0] * size[1] * masked
        slot.size[position] = size
        start = slot.reserve(image_bytes + labels_bytes)
        if start is None:
            return None
        middle, end = start + image_bytes, start + image_bytes + labels_bytes
        slot.offset[position], slot.mask_offset[position] = start, middle
        return slot.data[start:middle], slot.data[middle:end]

    def _report(self, task: Task, first: int, count: int, text: str = "") -> None:
        send_report(self._reports, Report(self._worker, task.slot, task.round, first, count, text))


def _cause(error: Exception, image: str) -> str:
    """What went wrong; the image's name is told with it, a mask's is not."""
    if isinstance(error, OSError) and error.strerror and error.filename == image:
        return error.strerror
    return str(error) or type(error).__name__


def _stamp(image: str, mask: str | None) -> tuple[int, ...]:
    """Of a sample's files as they are now; OSError when one is gone."""
    return stamp_of(os.stat(image)) + (_NO_MASK if mask is None else stamp_of(os.stat(mask)))


def _pixel_bytes(slot: Slot, position: int, channels: int, mask: str | None) -> int:
    height, width = slot.size[position]
    return int(height) * int(width) * (channels + (mask is not None))


def _since(started: float) -> float:
    return perf_counter() - started


def main() -> None:
    os.nice(_NICE)
    with contextlib.suppress(BrokenPipeError):  # the trainer is gone
        Decoder(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
