"""Clips in every way that is compared, one after another.

The feed is held against the fastest DataLoader that is written as people write them. Against one whose author knows how
many threads PyAV starts it is told as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fulltilt.bench.ground import said
from fulltilt.bench.video.clips import feed_rate, loader_rate
from fulltilt.bench.video.figures import TIMES_LOADER, Case
from fulltilt.cache import CacheSettings
from fulltilt.cache.video import build_videos


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    """A DataLoader as people write it."""

    key: str
    how: str
    jumps: bool
    scaled: bool
    alone: bool = False
    """It knows that PyAV would start threads for every frame that is converted. No target is for such a one."""


_PEERS = (
    _Peer(key="loader_scaled", how="from a key frame, scaled by swscale", jumps=True, scaled=True),
    _Peer(key="loader_jumps", how="from a key frame, scaled by torch", jumps=True, scaled=False),
    _Peer(
        key="loader_alone",
        how="from a key frame, scaled by swscale in one thread",
        jumps=True,
        scaled=True,
        alone=True,
    ),
)
_SLOWEST = _Peer(key="loader", how="from the beginning", jumps=False, scaled=False)
"""It takes long to see how slow it is."""
SHARED = "feed_shared"
"""The key of the way in which the GPU takes a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all of them have in common."""

    frames: int
    """Of each video."""
    size: int
    batch: int
    workers: int
    device: str
    seconds: float
    settle_seconds: float
    """How long the feed may look for the GPU's share."""
    has_targets: bool
    part: str = "clips"
    long: bool = False
    """Key frames are far apart: the other DataLoaders, which know nothing to do about it, are left out."""
    share: float | None = None
    """The GPU's, where it was found before: with key frames far apart a search takes minutes. None looks for it."""

    @property
    def suffix(self) -> str:
        return "_long" if self.long else ""

    @property
    def where(self) -> str:
        return ", key frames far apart" if self.long else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way through the feed."""

    key: str
    title: str
    options: dict[str, Any]
    aimed: bool = False
    """The target is for this one."""


def clips(paths: list[Path], ground: Ground, say: Callable[[str], None]) -> Iterator[Case]:
    """DataLoaders, then the feed in all of its ways. One that fails is its own line, and the others go on."""
    peers: list[tuple[_Peer, Case]] = []
    for peer in _PEERS:
        if not ground.long or peer.key == "loader_scaled":
            peers.append((peer, _peer(paths, ground, peer, say)))
            yield peers[-1][1]
    for way in _ways(paths, ground):
        yield _fed(paths, ground, way, peers, say)


def slowest(paths: list[Path], ground: Ground, say: Callable[[str], None]) -> Case:
    """The DataLoader that decodes every video from its beginning, as most code does that one finds."""
    return _peer(paths, ground, _SLOWEST, say)


def _ways(paths: list[Path], ground: Ground) -> list[_Way]:
    gpu = ground.device != "cpu"
    fast = {"quality": "fast"}
    found = [
        _Way(key="feed_fast", title="feed, quality fast", options=fast, aimed=not gpu),
        _Way(key="feed", title="feed(VideoClips)", options={}),
    ]
    if gpu:
        looks = {"gpu_share": "auto", "settle_seconds": ground.settle_seconds}
        shared = {**fast, **(looks if ground.share is None else {"gpu_share": ground.share})}
        found.insert(1, _Way(key=SHARED, title="feed, fast, NVDEC beside it", options=shared, aimed=True))
    if ground.long:
        together = {**fast, "together": ground.batch}
        found.append(_Way(key="feed_together", title="feed, fast, a batch from one video", options=together))
        return found
    return [*found, _Way(key="feed_cached", title="feed from a cache", options={"cache": paths[0].parent / "cache"})]


def _peer(paths: list[Path], ground: Ground, peer: _Peer, say: Callable[[str], None]) -> Case:
    say(f"{ground.part}: DataLoader, {peer.how}{ground.where}")
    case = Case(
        part=ground.part,
        key=peer.key + ground.suffix,
        title=f"DataLoader, PyAV per item, {peer.how}, {ground.workers} workers{ground.where}",
        unit="clips",
    )
    try:
        rate, decoded = loader_rate(
            paths,
            frames=ground.frames,
            size=ground.size,
            batch=ground.batch,
            workers=ground.workers,
            device=ground.device,
            seconds=ground.seconds,
            jumps=peer.jumps,
            scaled=peer.scaled,
            alone=peer.alone,
        )
    except Exception as error:
        return replace(case, problem=said(error))
    return replace(case, per_second=rate, notes={"decoded_per_frame": round(decoded, 2)})


def _fed(
    paths: list[Path], ground: Ground, way: _Way, peers: list[tuple[_Peer, Case]], say: Callable[[str], None]
) -> Case:
    say(f"{ground.part}: {way.title}{ground.where}")
    case = Case(
        part=ground.part,
        key=way.key + ground.suffix,
        title=f"{way.title}, {ground.workers} workers{ground.where}",
        unit="clips",
        at_least=TIMES_LOADER if ground.has_targets and way.aimed else None,
    )
    try:
        if "cache" in way.options:
            build_videos(way.options["cache"], paths, settings=CacheSettings(size=ground.size))
        rate, notes = feed_rate(
            paths,
            size=ground.size,
            batch=ground.batch,
            workers=ground.workers,
            device=ground.device,
            seconds=ground.seconds,
            **way.options,
        )
    except Exception as error:
        return replace(case, problem=said(error))
    against = {f"times_{its.key}": round(rate / its.per_second, 2) for _, its in peers if its.per_second}
    usual = [its.per_second for peer, its in peers if its.per_second and not peer.alone]
    times = rate / max(usual) if usual else None
    return replace(case, per_second=rate, times=times, notes={**notes, **against})
