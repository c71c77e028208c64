"""Clips in every way that is compared, one after another; the feed is compared with the fastest of the others."""

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

_PEERS = (
    ("loader", "from the beginning", False, False),
    ("loader_jumps", "from a key frame, scaled by torch", True, False),
    ("loader_scaled", "from a key frame, scaled by swscale", True, True),
)
"""DataLoaders: key, how, whether they jump, whether swscale scales."""
_SETTLE_SECONDS = 90.0
"""How long the feed may look for the GPU's share."""
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
    targets: bool
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
    peers: list[Case] = []
    for peer in _PEERS:
        if not ground.long or peer[0] == "loader_scaled":
            peers.append(_peer(paths, ground, peer, say))
            yield peers[-1]
    for way in _ways(paths, ground):
        yield _fed(paths, ground, way, peers, say)


def _ways(paths: list[Path], ground: Ground) -> list[_Way]:
    gpu = ground.device != "cpu"
    fast = {"quality": "fast"}
    found = [
        _Way(key="feed", title="feed(VideoClips)", options={}),
        _Way(key="feed_fast", title="feed, quality fast", options=fast, aimed=not gpu),
    ]
    if gpu:
        looks = {"gpu_share": "auto", "settle_seconds": _SETTLE_SECONDS}
        shared = {**fast, **(looks if ground.share is None else {"gpu_share": ground.share})}
        found.append(_Way(key=SHARED, title="feed, fast, NVDEC beside it", options=shared, aimed=True))
    if ground.long:
        together = {**fast, "together": ground.batch}
        found.append(_Way(key="feed_together", title="feed, fast, a batch from one video", options=together))
        return found
    return [*found, _Way(key="feed_cached", title="feed from a cache", options={"cache": paths[0].parent / "cache"})]


def _peer(paths: list[Path], ground: Ground, peer: tuple[str, str, bool, bool], say: Callable[[str], None]) -> Case:
    key, how, jumps, scaled = peer
    say(f"clips: DataLoader, {how}{ground.where}")
    case = Case(
        part="clips",
        key=key + ground.suffix,
        title=f"DataLoader, PyAV per item, {how}, {ground.workers} workers{ground.where}",
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
            jumps=jumps,
            scaled=scaled,
        )
    except Exception as error:
        return replace(case, problem=said(error))
    return replace(case, per_second=rate, notes={"decoded_per_frame": round(decoded, 2)})


def _fed(paths: list[Path], ground: Ground, way: _Way, peers: list[Case], say: Callable[[str], None]) -> Case:
    say(f"clips: {way.title}{ground.where}")
    case = Case(
        part="clips",
        key=way.key + ground.suffix,
        title=f"{way.title}, {ground.workers} workers{ground.where}",
        unit="clips",
        at_least=TIMES_LOADER if ground.targets and way.aimed else None,
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
    rates = {peer.key: peer.per_second for peer in peers if peer.per_second}
    against = {f"times_{key}": round(rate / of_peer, 2) for key, of_peer in rates.items()}
    times = rate / max(rates.values()) if rates else None
    return replace(case, per_second=rate, times=times, notes={**notes, **against})
