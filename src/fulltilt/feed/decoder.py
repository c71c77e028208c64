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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache import Cache
from fulltilt.cache.make import make
from fulltilt.decode import Quality, decode_into, decode_mask_into, probe
from fulltilt.decode.header import Header
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.errors import FulltiltError
from fulltilt.feed.catalog import Catalog
from fulltilt.feed.slot import Slot, Status
from fulltilt.feed.wire import Report, Task, receive_task, send_report

Bytes = NDArray[np.uint8]

_LOOK_UP_SECONDS = 2.0
_NICE = 10
"""Where cores are short, the trainer's threads come first: a kernel launched late costs more than a file read late."""


class Desk:
    """What each decoder is at, in memory that outlives it: its task and the sample under way."""

    COLUMNS = 5

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self._lines = np.ndarray((len(self._map) // (8 * self.COLUMNS), self.COLUMNS), np.int64, self._map)

    @classmethod
    def create(cls, workers: int) -> Desk:
        fd = os.memfd_create("fulltilt-desk", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(workers, 1) * 8 * cls.COLUMNS)
        desk = cls(fd)
        desk._lines[:, 0] = -1
        return desk

    def write(self, worker: int, task: Task, position: int) -> None:
        self._lines[worker] = (*task, position)

    def clear(self, worker: int) -> None:
        self._lines[worker, 0] = -1

    def read(self, worker: int) -> tuple[Task, int] | None:
        """The task and the position under way, or None when the decoder was between tasks."""
        *task, position = (int(n) for n in self._lines[worker])
        return None if task[0] < 0 else (Task(*task), position)

    def close(self) -> None:
        del self._lines
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
        self._cache = None if options["cache"] is None else Cache.open(options["cache"])

    def run(self) -> None:
        """Until told to stop, or until there is nobody to work for."""
        waiting = select.poll()
        waiting.register(self._tasks, select.POLLIN | select.POLLHUP)
        while True:
            while not waiting.poll(_LOOK_UP_SECONDS * 1000):
                if os.getppid() != self._parent:
                    return
            task = receive_task(self._tasks)
            if task is None or task.slot < 0:
                return
            self._do(task)

    def _do(self, task: Task) -> None:
        slot = self._slots[task.slot]
        slot.refresh()
        fine = 0
        for position in range(task.first, task.first + task.samples):
            self._desk.write(self._worker, task, position)
            try:
                slot.status[position] = self._sample(slot, position)
                fine += 1
            except (FulltiltError, OSError) as error:
                self._report(task, position, 1, str(error) or type(error).__name__)
                slot.status[position] = Status.FAILED
        if fine:
            self._report(task, task.first, fine)
        self._desk.clear(self._worker)

    def _sample(self, slot: Slot, position: int) -> Status:
        number = int(slot.index[position])
        image = self._catalog.image(number)
        mask = self._catalog.mask(number) if self._catalog.has_masks else None
        if self._cache is None:
            data, labels = _read(image), None if mask is None else _read(mask)
            if slot.status[position] == Status.WAITING_AS_FILE:
                header = probe(data)
                if cpu_reason(header, memoryview(data)) is None:
                    return self._as_file(slot, position, data, header, labels)
            return self._decoded(slot, position, data, labels)
        entry = self._cache.find(self._cache.key(image, mask))
        if entry is not None:
            return self._copied(slot, position, self._cache.pixels(entry), self._cache.mask(entry))
        # What is not in the cache is made as it would have been, so that a sample looks alike in every epoch.
        made = make(_read(image), None if mask is None else _read(mask), self._cache.settings)
        return self._copied(slot, position, *made)

    def _decoded(self, slot: Slot, position: int, image: bytes, mask: bytes | None) -> Status:
        header = probe(image)
        size = header.height, header.width
        room = self._room(slot, position, size, size[0] * size[1] * self._channels, masked=mask is not None)
        if room is None:
            return Status.NO_ROOM
        pixels, labels = room
        decode_into(image, pixels, header=header, channels=self._channels, quality=self._quality)
        if mask is not None:
            decode_mask_into(mask, labels, size, dtype=np.uint8)
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


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        data = os.read(fd, size)
        while len(data) < size and (more := os.read(fd, size - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def main() -> None:
    os.nice(_NICE)
    with contextlib.suppress(BrokenPipeError):  # the trainer is gone
        Decoder(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
