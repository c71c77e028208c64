"""Every checksum of a cache computed again, and every source read and hashed again."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fulltilt.cache.keys import content_of, hash_steadily, read_steadily
from fulltilt.cache.manifest import locked
from fulltilt.cache.shard import HEADER_BYTES, RECORD_BYTES, Record, header, path_of, shard_numbers
from fulltilt.cache.store import Cache, entry_of
from fulltilt.cache.writer import recover
from fulltilt.errors import CacheError
from fulltilt.machine.cores import read_cores
from fulltilt.machine.files import write_whole

_AT_ONCE: Final = 256

SourceState = Literal["same", "touched", "changed", "gone", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something in the cache that must not be used."""

    shard: int
    position: int | None
    """Which record of the shard's index; None for the whole shard."""
    path: str
    """The image; the shard's own file where it can't be told."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was found."""

    entries: int
    damage: tuple[Damage, ...]
    sources: dict[SourceState, int] | None
    """How many files are the same as when they were read; touched (same content, another stamp), changed or gone, none
    of which is served by name; stale: other content behind the same stamp, which also counts as damage."""
    dropped: int
    seconds: float


def verify(
    folder: Path,
    *,
    sources: bool = True,
    drop: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check everything. `drop` takes damaged entries out of the index, so that the next build makes them anew."""
    started = time.monotonic()
    cache = Cache.open(folder)
    with contextlib.ExitStack() as held:
        if drop:
            held.enter_context(locked(folder, waiting=None))
            recover(folder, cache.settings.digest)
            cache = Cache.open(folder)
        damage = list(_broken_shards(folder, cache.settings.digest))
        states: dict[SourceState, int] = {"same": 0, "touched": 0, "changed": 0, "gone": 0, "stale": 0}
        newest = _newest(cache) if sources else {}
        checks = _checks(cache, newest)
        for done, (shard, position, path, what, state) in enumerate(_in_parallel(checks), start=1):
            if state is not None:
                states[state] += 1
            if what is not None:
                damage.append(Damage(shard=shard, position=position, path=path, what=what))
            if progress is not None:
                progress(done, len(cache))
        if drop:
            _drop(folder, cache.settings.digest, damage)
    return VerifyReport(
        entries=len(cache),
        damage=tuple(damage),
        sources=states if sources else None,
        dropped=len(damage) if drop else 0,
        seconds=time.monotonic() - started,
    )


Found = tuple[int, int, str, str | None, SourceState | None]
"""Shard, position, path, what is wrong, what became of the source."""


Content = Callable[[str, str | None], tuple[bytes, tuple[int, ...]]]
"""Of an image and its mask: their hash, and the stamp that they bear now."""


def _checks(cache: Cache, newest: dict[bytes, int]) -> Iterator[Callable[[], Found]]:
    """One per record. Memory is mapped here; what is left to do needs no lock and releases Python's."""
    # A video has a record for every few seconds, and is not read again for each of them.
    content: Content = lru_cache(maxsize=_AT_ONCE)(partial(_content, settings=cache.settings.digest))
    for shard, position, record in cache.records():
        if record is None:
            name = str(path_of(cache.folder, shard, "index"))
            text = f"record {position} is damaged: whose it was is not known"
            yield partial(_found, (shard, position, name, text, None))
            continue
        names = cache.paths(shard, record)
        path = names[0] if names else "(its name is lost)"
        try:
            views = [cache.pixels(entry_of(record)), cache.mask(entry_of(record))]
        except CacheError as error:
            yield partial(_found, (shard, position, path, str(error), None))
            continue
        is_newest = newest.get(record.name) == record.written_ns
        source = (*names, content) if names and is_newest else None
        yield partial(_check, shard, position, path, record, views, source)


def _found(found: Found) -> Found:
    return found


def _check(
    shard: int,
    position: int,
    path: str,
    record: Record,
    views: list[NDArray[np.uint8] | None],
    source: tuple[str, str | None, Content] | None,
) -> Found:
    what = None
    for view, want in zip(views, (record.checksum, record.mask_checksum), strict=True):
        if view is not None and (found := zlib.crc32(view.data)) != want:
            place = f"shard {record.shard}, byte {record.offset:,}"
            what = f"its pixels are damaged ({place}): checksum {found:08x}, written was {want:08x}"
    state = None if source is None else _source(*source[:2], record, source[2])
    if state == "stale":
        what = "the file has other content behind the same size and times"
    return shard, position, path, what, state


def _source(path: str, mask: str | None, record: Record, content: Content) -> SourceState:
    try:
        found, stamp = content(path, mask)
    except OSError:
        return "gone"
    same = found == record.content
    if stamp == record.stamp:
        return "same" if same else "stale"
    return "touched" if same else "changed"


def _content(path: str, mask: str | None, *, settings: bytes) -> tuple[bytes, tuple[int, ...]]:
    if mask is None:
        content, stamp = hash_steadily(path, settings)
        return content, (*stamp, 0, 0, 0, 0)
    (data, stamp), (mask_data, mask_stamp) = read_steadily(path), read_steadily(mask)
    return content_of(data, mask_data, settings), stamp + mask_stamp


def _newest(cache: Cache) -> dict[bytes, int]:
    """When each name was last written: a file that was rebuilt is judged by that record."""
    newest: dict[bytes, int] = {}
    for _, _, record in cache.records():
        if record is not None:
            newest[record.name] = max(newest.get(record.name, 0), record.written_ns)
    return newest


def _in_parallel(checks: Iterator[Callable[[], Found]]) -> Iterator[Found]:
    with ThreadPoolExecutor(read_cores().usable) as pool:
        waiting: list[Future[Found]] = []
        for check in checks:
            waiting.append(pool.submit(check))
            if len(waiting) == _AT_ONCE:
                yield from (future.result() for future in waiting)
                waiting.clear()
        yield from (future.result() for future in waiting)


def _broken_shards(folder: Path, settings: bytes) -> Iterator[Damage]:
    """Shards of which no entry can be found: their index is gone or not an index."""
    for number in shard_numbers(folder):
        path = path_of(folder, number, "index")
        try:
            with path.open("rb") as file:
                what = None if file.read(HEADER_BYTES) == header("index", settings, number) else "damaged"
        except FileNotFoundError:
            what = "gone"
        if what is not None:
            text = f"the index is {what}: none of the shard's entries can be found"
            yield Damage(shard=number, position=None, path=str(path), what=text)


def _drop(folder: Path, settings: bytes, damage: list[Damage]) -> None:
    for number in {one.shard for one in damage}:
        positions = {one.position for one in damage if one.shard == number}
        if None in positions:
            for kind in ("index", "names", "pixels"):
                path_of(folder, number, kind).unlink(missing_ok=True)
            continue
        path = path_of(folder, number, "index")
        body = path.read_bytes()[HEADER_BYTES:]
        count = len(body) // RECORD_BYTES
        kept = (body[at * RECORD_BYTES :][:RECORD_BYTES] for at in range(count) if at not in positions)
        write_whole(path, header("index", settings, number) + b"".join(kept))
