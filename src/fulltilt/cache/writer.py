"""Appends samples to shards, each shard held by one process.

Pixels are written as they come; their records follow in groups, after the pixels are on the disk. So a record always
points to something, and whatever has no record yet is cut off by the next who opens the shard.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache.shard import (
    HEADER_BYTES,
    RECORD_BYTES,
    Record,
    align,
    header,
    path_of,
    shard_numbers,
)
from fulltilt.machine.files import sync

SHARD_BYTES: Final = 1 << 30
_GROUP_BYTES: Final = 32 << 20
_GROUP_SECONDS: Final = 2.0
"""At most this much work is done again after kill -9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a record says about a sample, wherever its pixels lie."""

    name: bytes
    content: bytes
    stamp: tuple[int, ...]
    image: bytes
    """Its path."""
    mask: bytes | None
    """Its mask's path."""


class ShardWriter:
    """Appends to one shard after another. OSError (a full disk) leaves all that was added before in order."""

    def __init__(self, folder: Path, settings: bytes, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._settings, self._limit = folder, settings, shard_bytes
        self._shard: _Shard | None = None
        self._kept_before = 0

    def add(self, subject: Subject, pixels: NDArray[np.uint8], mask: NDArray[np.uint8] | None) -> Record:
        """Keep a sample's pixels."""
        room = align(pixels.nbytes) + (0 if mask is None else align(mask.nbytes))
        if self._shard is not None and self._shard.end + room > self._limit and self._shard.end > HEADER_BYTES:
            self.close()
        shard = self._shard or self._claim(room)
        return shard.append(subject, pixels, mask)

    def add_known(self, subject: Subject, known: Record) -> None:
        """Another name for pixels that are kept already."""
        shard = self._shard or self._claim(0)
        shard.append_known(subject, known)

    @property
    def kept(self) -> int:
        """How many samples, in the order they were added, survive whatever happens now."""
        return self._kept_before + (0 if self._shard is None else self._shard.kept)

    def close(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            try:
                shard.flush()
            finally:
                self._kept_before += shard.kept
                shard.close()

    def _claim(self, room: int) -> _Shard:
        """A shard with room that nobody holds, or a new one."""
        numbers = shard_numbers(self._folder)
        for number in numbers:
            shard = open_shard(self._folder, number, self._settings, wait=False)
            if shard is not None and shard.end + room <= self._limit:
                self._shard = shard
                return shard
            if shard is not None:
                shard.close()
        self._shard = _create(self._folder, max(numbers, default=-1) + 1, self._settings)
        return self._shard


class _Shard:
    """One shard, open for appending and locked by us."""

    def __init__(self, folder: Path, number: int, pixels: int, settings: bytes) -> None:
        self._number, self._pixels = number, pixels
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._index = os.open(path_of(folder, number, "index"), flags, 0o666)
        self._names = os.open(path_of(folder, number, "names"), flags, 0o666)
        self._pending: list[bytes] = []
        self.kept = 0
        self._pending_bytes = 0
        self._flushed_at = time.monotonic()
        if os.fstat(self._index).st_size < HEADER_BYTES:
            os.ftruncate(self._index, 0)
            _write(self._index, header("index", settings, number), 0)
        self.is_sound = os.pread(self._index, HEADER_BYTES, 0) == header("index", settings, number)
        self._index_end, self.end, self._names_end = HEADER_BYTES, HEADER_BYTES, 0
        if self.is_sound:
            self._cut()
        self._kept_end, self._kept_names_end = self.end, self._names_end

    def append(self, subject: Subject, pixels: NDArray[np.uint8], mask: NDArray[np.uint8] | None) -> Record:
        height, width, channels = pixels.shape
        offset = align(self.end)
        mask_offset = -1 if mask is None else align(offset + pixels.nbytes)
        record = self._record(
            subject,
            shard=self._number,
            height=height,
            width=width,
            channels=channels,
            offset=offset,
            mask_offset=mask_offset,
            checksum=zlib.crc32(pixels.data),
            mask_checksum=0 if mask is None else zlib.crc32(mask.data),
        )
        try:
            _write(self._pixels, pixels, offset)
            if mask is not None:
                _write(self._pixels, mask, mask_offset)
            self._enter(subject, record)
        except OSError:
            self._give_up_one()
            raise
        self.end = record.end
        self._pending_bytes += record.end - offset
        self._flush_when_due()
        return record

    def append_known(self, subject: Subject, known: Record) -> None:
        record = self._record(
            subject,
            shard=known.shard,
            height=known.height,
            width=known.width,
            channels=known.channels,
            offset=known.offset,
            mask_offset=known.mask_offset,
            checksum=known.checksum,
            mask_checksum=known.mask_checksum,
        )
        self._enter(subject, record)
        self._flush_when_due()

    def flush(self) -> None:
        """Pixels and names to the disk, then the records that point to them."""
        self._flushed_at = time.monotonic()
        if not self._pending:
            return
        try:
            os.fdatasync(self._pixels)
            os.fdatasync(self._names)
            records = b"".join(self._pending)
            _write(self._index, records, self._index_end)
            os.fdatasync(self._index)
        except OSError:
            os.ftruncate(self._index, self._index_end)
            self._pending.clear()
            self.end, self._names_end = self._kept_end, self._kept_names_end
            os.ftruncate(self._pixels, self.end)
            raise
        self.kept += len(self._pending)
        self._index_end += len(records)
        self._kept_end, self._kept_names_end = self.end, self._names_end
        self._pending.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        for fd in (self._index, self._names, self._pixels):  # the lock lives as long as the pixels' descriptor
            os.close(fd)

    def _record(
        self,
        subject: Subject,
        *,
        shard: int,
        height: int,
        width: int,
        channels: int,
        offset: int,
        mask_offset: int,
        checksum: int,
        mask_checksum: int,
    ) -> Record:
        return Record(
            name=subject.name,
            content=subject.content,
            stamp=subject.stamp,
            shard=shard,
            height=height,
            width=width,
            channels=channels,
            offset=offset,
            mask_offset=mask_offset,
            checksum=checksum,
            mask_checksum=mask_checksum,
            path_offset=self._names_end,
            path_bytes=len(subject.image),
            mask_path_bytes=-1 if subject.mask is None else len(subject.mask),
            written_ns=time.time_ns(),
        )

    def _enter(self, subject: Subject, record: Record) -> None:
        paths = subject.image + (subject.mask or b"")
        _write(self._names, paths, self._names_end)
        self._names_end += len(paths)
        self._pending.append(record.pack())

    def _flush_when_due(self) -> None:
        if self._pending_bytes >= _GROUP_BYTES or time.monotonic() - self._flushed_at >= _GROUP_SECONDS:
            self.flush()

    def _give_up_one(self) -> None:
        """The disk is full: the room of a sample that did not fit may be enough to enter the ones that did."""
        os.ftruncate(self._pixels, self.end)
        with contextlib.suppress(OSError):  # not even that: they are made again by the next build
            self.flush()

    def _cut(self) -> None:
        """Find the last whole record; what lies behind it, here and in the other files, was never finished."""
        size = os.fstat(self._index).st_size
        count = (size - HEADER_BYTES) // RECORD_BYTES
        data = os.pread(self._index, count * RECORD_BYTES, HEADER_BYTES)
        records = [Record.unpack(data[at : at + RECORD_BYTES]) for at in range(0, len(data), RECORD_BYTES)]
        while records and records[-1] is None:
            records.pop()
        self._index_end = HEADER_BYTES + len(records) * RECORD_BYTES
        for record in records:
            if record is not None:
                paths = record.path_bytes + max(0, record.mask_path_bytes)
                self._names_end = max(self._names_end, record.path_offset + paths)
                if record.shard == self._number:
                    self.end = max(self.end, record.end)
        if os.fstat(self._pixels).st_size < self.end:
            self.is_sound = False  # somebody cut it; appending would fill the gap with zeros that look like pixels
            return
        if self._index_end != size:
            os.ftruncate(self._index, self._index_end)
        os.ftruncate(self._pixels, self.end)
        os.ftruncate(self._names, self._names_end)


def open_shard(folder: Path, number: int, settings: bytes, *, wait: bool) -> _Shard | None:
    """An existing shard, its unfinished end cut off; None when it is held by another or damaged."""
    try:
        pixels = os.open(path_of(folder, number, "pixels"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(pixels, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.pread(pixels, HEADER_BYTES, 0) != header("pixels", settings, number):
            os.close(pixels)
            return None
        shard = _Shard(folder, number, pixels, settings)
    except BlockingIOError:
        os.close(pixels)
        return None
    except BaseException:
        os.close(pixels)
        raise
    if shard.is_sound:
        return shard
    shard.close()
    return None


def recover(folder: Path, settings: bytes) -> None:
    """Cut off what earlier builds left unfinished. Waits for their orphaned workers, which end by themselves."""
    for number in shard_numbers(folder):
        shard = open_shard(folder, number, settings, wait=True)
        if shard is not None:
            shard.close()
        elif path_of(folder, number, "pixels").exists() and not path_of(folder, number, "pixels").stat().st_size:
            _remove(folder, number)  # its maker was killed before it wrote anything


def _create(folder: Path, number: int, settings: bytes) -> _Shard:
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            pixels = os.open(path_of(folder, number, "pixels"), flags, 0o666)
            break
        except FileExistsError:
            number += 1
    try:
        # Locked before the header is there: nobody claims a shard without one.
        fcntl.flock(pixels, fcntl.LOCK_EX)
        _write(pixels, header("pixels", settings, number), 0)
        shard = _Shard(folder, number, pixels, settings)
    except BaseException:
        _remove(folder, number)
        os.close(pixels)
        raise
    sync(folder)  # the files' names have to survive as well
    return shard


def _remove(folder: Path, number: int) -> None:
    for kind in ("index", "names", "pixels"):
        path_of(folder, number, kind).unlink(missing_ok=True)


def _write(fd: int, data: bytes | NDArray[np.uint8], offset: int) -> None:
    rest = memoryview(data if isinstance(data, bytes) else data.data).cast("B")
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
