"""`Cache`: find a sample and look at its pixels where they lie.

A cache is opened as it is at that moment; what a build adds later is seen by opening again. The indexes stay in the
system's page cache, shared by all processes; each process keeps 16 bytes per entry of its own.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache.keys import Key, Path, key_of
from fulltilt.cache.manifest import check_settings, read_manifest
from fulltilt.cache.settings import CacheSettings
from fulltilt.cache.shard import HEADER_BYTES, KEYS, RECORD_BYTES, Record, header, path_of, shard_numbers
from fulltilt.errors import CacheError, InputError

Keys = NDArray[np.uint64]
Places = NDArray[np.int64]

_MOST_MAPS: Final = 512


class Entry(NamedTuple):
    """Where the pixels of a sample lie."""

    shard: int
    offset: int
    height: int
    width: int
    channels: int
    mask_offset: int
    """-1 without a mask; a mask is height × width bytes."""
    checksum: int
    mask_checksum: int


class Cache:
    """A cache, to read from. Any number of processes may, also while one builds."""

    def __init__(self, folder: FilePath, settings: CacheSettings) -> None:
        self.folder, self.settings = folder, settings
        self._digest = settings.digest
        self._maps = _Maps(folder, self._digest)
        self._shards: list[int] = []
        self._starts: list[int] = []
        self._pixel_bytes: dict[int, int] = {}
        self._count = 0
        for number in shard_numbers(folder):
            self._pixel_bytes[number] = _size(path_of(folder, number, "pixels"))
            count = max(0, _size(path_of(folder, number, "index")) - HEADER_BYTES) // RECORD_BYTES
            if not count or (index := self._maps.get(number, "index")) is None:
                continue
            count = min(count, (len(index) - HEADER_BYTES) // RECORD_BYTES)
            self._shards.append(number)
            self._starts.append(self._count)
            self._count += count
        self._by_name = self._sorted("name")
        self._by_content: tuple[Keys, Places] | None = None  # sorted on first use: most never ask

    @classmethod
    def open(cls, folder: Path, settings: CacheSettings | None = None) -> Cache:
        """The cache in `folder`; CacheError where there is none or it was built with other settings than these."""
        place = FilePath(folder)
        found = read_manifest(place)
        if settings is not None:
            check_settings(place, found, settings)
        return cls(place, found)

    def __len__(self) -> int:
        """Records, of which some may be of files that have changed since."""
        return self._count

    def key(self, image: Path, mask: Path | None = None) -> Key:
        """The key of a sample as its files are now; OSError when one is gone."""
        return key_of(image, mask, self._digest)

    def find(self, key: Key) -> Entry | None:
        """The entry, or None when there is none, or its files have changed, or it can't be read in full."""
        for record in self._candidates(*self._by_name, key.name):
            if record.name == key.name and record.stamp == key.stamp and self._is_there(record):
                return entry_of(record)
        return None

    def known(self, content: bytes) -> Record | None:
        """A record whose pixels were made from this content."""
        if self._by_content is None:
            self._by_content = self._sorted("content")
        for record in self._candidates(*self._by_content, content):
            if record.content == content and self._is_there(record):
                return record
        return None

    def pixels(self, entry: Entry, *, check: bool = False) -> NDArray[np.uint8]:
        """H×W×C where it lies, read-only, without a copy. `check` compares the checksum: CacheError on damage."""
        shape = (entry.height, entry.width, entry.channels)
        return self._view(entry, entry.offset, shape, entry.checksum if check else None)

    def mask(self, entry: Entry, *, check: bool = False) -> NDArray[np.uint8] | None:
        """H×W labels, or None where the sample has none."""
        if entry.mask_offset < 0:
            return None
        shape = (entry.height, entry.width)
        return self._view(entry, entry.mask_offset, shape, entry.mask_checksum if check else None)

    def records(self) -> Iterator[tuple[int, int, Record | None]]:
        """(shard, position, record) of each; None where it is damaged."""
        for shard, start, end in self._ranges():
            for position in range(end - start):
                yield shard, position, self._record(start + position)

    def paths(self, shard: int, record: Record) -> tuple[str, str | None] | None:
        """The image's path and the mask's, as they were; `shard` is where the record was found. None: they are lost."""
        names = self._maps.get(shard, "names")
        middle = record.path_offset + record.path_bytes
        end = middle + max(0, record.mask_path_bytes)
        if names is None or end > len(names) or 0 in names[record.path_offset : end]:
            return None
        image = os.fsdecode(names[record.path_offset : middle])
        return image, os.fsdecode(names[middle:end]) if record.mask_path_bytes >= 0 else None

    @property
    def shards(self) -> dict[int, int]:
        """Bytes of pixels by shard."""
        return dict(self._pixel_bytes)

    def _is_there(self, record: Record) -> bool:
        return record.end <= self._pixel_bytes.get(record.shard, 0)

    def _view(self, entry: Entry, offset: int, shape: tuple[int, ...], checksum: int | None) -> NDArray[np.uint8]:
        memory = self._maps.get(entry.shard, "pixels", least=offset + int(np.prod(shape)))
        if memory is None:
            raise CacheError(
                f"{path_of(self.folder, entry.shard, 'pixels')} is cut short, gone or not of this cache; "
                f"`fulltilt cache verify {self.folder}` says what is lost, building again makes it anew"
            )
        view: NDArray[np.uint8] = np.ndarray(shape, np.uint8, memory, offset)
        if checksum is not None and (found := zlib.crc32(view.data)) != checksum:
            raise CacheError(
                f"{path_of(self.folder, entry.shard, 'pixels')} is damaged at byte {offset:,}: the checksum is "
                f"{found:08x}, written was {checksum:08x}; `fulltilt cache verify --drop {self.folder}`, "
                "then build again"
            )
        return view

    def _candidates(self, keys: Keys, places: Places, wanted: bytes) -> Iterator[Record]:
        first = np.uint64(int.from_bytes(wanted[:8], "little"))
        for at in itertools.count(int(keys.searchsorted(first))):
            if at >= len(keys) or keys[at] != first:
                return
            if (record := self._record(int(places[at]))) is not None:
                yield record

    def _record(self, place: int) -> Record | None:
        which = bisect_right(self._starts, place) - 1
        index = self._maps.get(self._shards[which], "index")
        if index is None:
            return None
        start = HEADER_BYTES + (place - self._starts[which]) * RECORD_BYTES
        return Record.unpack(index[start : start + RECORD_BYTES])

    def _sorted(self, column: str) -> tuple[Keys, Places]:
        """A column of all indexes in order, and the place of each value."""
        keys = np.empty(self._count, np.uint64)
        for shard, start, end in self._ranges():
            if (index := self._maps.get(shard, "index")) is not None:
                keys[start:end] = np.ndarray((end - start,), KEYS, index, HEADER_BYTES)[column]
        places = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
        return keys[places], places

    def _ranges(self) -> Iterator[tuple[int, int, int]]:
        """(shard, first place, one past the last)."""
        ends = [*self._starts, self._count][1:]
        return zip(self._shards, self._starts, ends, strict=True)


class _Maps:
    """Mapped files, the longest unused given up first: each holds a file descriptor, and of those there are few."""

    def __init__(self, folder: FilePath, settings: bytes) -> None:
        self._folder, self._settings = folder, settings
        self._most = max(8, min(_MOST_MAPS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._open: OrderedDict[tuple[int, str], mmap.mmap] = OrderedDict()

    def get(self, number: int, kind: str, *, least: int = HEADER_BYTES) -> mmap.mmap | None:
        """The file's memory, or None where it is missing, shorter than `least` or not what it should be."""
        found = self._open.get((number, kind))
        if found is None:
            found = self._map(number, kind)
            if found is None:
                return None
            self._open[number, kind] = found
            if len(self._open) > self._most:
                self._open.popitem(last=False)  # unmapped when the last view of it is gone
        else:
            self._open.move_to_end((number, kind))
        return found if kind == "names" or len(found) >= least else None

    def _map(self, number: int, kind: str) -> mmap.mmap | None:
        path = path_of(self._folder, number, kind)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            # No CacheError: nothing is damaged, so `verify --drop` is not to take it out.
            raise InputError(
                f"{path} can't be opened ({error.strerror}): make it readable, or build another"
            ) from error
        try:
            if not os.fstat(fd).st_size:
                return None
            memory = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        if kind != "names" and memory[:HEADER_BYTES] != header(kind, self._settings, number):
            return None
        return memory


def entry_of(record: Record) -> Entry:
    return Entry(
        record.shard,
        record.offset,
        record.height,
        record.width,
        record.channels,
        record.mask_offset,
        record.checksum,
        record.mask_checksum,
    )


def _size(path: FilePath) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
