"""What a cache holds, in figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fulltilt.cache.build import absent, unique
from fulltilt.cache.predict import folder_bytes
from fulltilt.cache.settings import DECODE_VERSION, CacheSettings
from fulltilt.cache.shard import HEADER_BYTES, align
from fulltilt.cache.store import Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How much of a source the cache would serve now."""

    samples: int
    hits: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """A cache in figures."""

    settings: CacheSettings
    entries: int
    """Samples, each counted once."""
    masks: int
    """Of them with a mask."""
    superseded: int
    """Records of files that have been built again since; their pixels stay until the cache is cleared."""
    damaged: int
    """Records that can't be read, or whose pixels are cut off; `verify` names them."""
    shards: int
    bytes: int
    """On the disk, indexes included."""
    unused_bytes: int
    """Pixels that no sample points to any more."""
    mean_bytes: float | None
    """Of a sample's pixels and mask."""
    is_current: bool
    """Whether this fulltilt still decodes as the one that built it; if not, nothing is served."""
    source: Hits | None = None


def look(
    folder: str | os.PathLike[str], images: Sequence[str] | None = None, masks: Sequence[str] | None = None
) -> Info:
    """Read the index; with `images`, see how many of them would be served."""
    place = Path(folder)
    cache = Cache.open(place)
    sizes = cache.shards
    newest: dict[bytes, tuple[int, int, int, int, bool]] = {}
    damaged = sound = 0
    for _, _, record in cache.records():
        if record is None or record.end > sizes.get(record.shard, 0):
            damaged += 1
            continue
        sound += 1
        if record.written_ns >= newest.get(record.name, (0,))[0]:
            room = record.end - record.offset
            newest[record.name] = (record.written_ns, record.shard, record.offset, room, record.mask_offset >= 0)
    used = {(shard, offset): room for _, shard, offset, room, _ in newest.values()}
    hits = None
    if images is not None:
        samples = unique(images, masks, cache.settings)
        found = len(samples) - len(absent(cache, samples))
        hits = Hits(samples=len(samples), hits=found, rate=found / len(samples) if samples else 0.0)
    return Info(
        settings=cache.settings,
        entries=len(newest),
        masks=sum(one[4] for one in newest.values()),
        superseded=sound - len(newest),
        damaged=damaged,
        shards=len(sizes),
        bytes=folder_bytes(place),
        unused_bytes=max(
            0, sum(sizes.values()) - sum(align(room) for room in used.values()) - HEADER_BYTES * len(sizes)
        ),
        mean_bytes=sum(used.values()) / len(used) if used else None,
        is_current=cache.settings.decode_version == DECODE_VERSION,
        source=hits,
    )
