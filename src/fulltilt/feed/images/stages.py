"""From counts to figures: what each stage of an image file's way takes, which one holds training up, and the rates from
which a cache is decided on. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from fulltilt.cache.policy import RAM_SHARE, Rates
from fulltilt.feed.images.tally import Counts
from fulltilt.feed.tuner import WAITING

_COLD_SHARE = 0.05
"""Where fewer reads than this come from the disk, reading does not limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What was counted on the way from file to step."""

    counts: Counts
    workers: int
    """Decoders now."""
    gpu_samples: int = 0
    gpu_seconds: float = 0.0
    """Of the one thread that has the GPU decode."""
    step_seconds_per_sample: float | None = None

    def figures(self) -> dict[str, float]:
        """`<stage>_seconds_per_sample` of one decoder, `<stage>_samples_per_second` of all if they did nothing else."""
        c = self.counts
        found: dict[str, float] = {}
        for stage, samples, seconds, many in (
            ("read", c.read_samples, c.read_seconds, self.workers),
            ("decode", c.decode_samples, c.decode_seconds, self.workers),
            ("copy", c.copy_samples, c.copy_seconds, self.workers),
            ("gpu_decode", self.gpu_samples, self.gpu_seconds, 1),
            ("step", 1, self.step_seconds_per_sample or 0.0, 1),
        ):
            if samples and seconds > 0:
                found[f"{stage}_seconds_per_sample"] = seconds / samples
                found[f"{stage}_samples_per_second"] = many * samples / seconds
        if c.read_samples:
            found["read_bytes_per_sample"] = c.read_bytes / c.read_samples
            found["read_cold_share"] = c.cold_samples / c.read_samples
        return found

    def bottleneck(self, wait_share: float) -> str:
        """The step when nothing waits for the feed; otherwise what the decoders, or the GPU beside them, do most."""
        if wait_share <= WAITING:
            return "step"
        c = self.counts
        seconds = {"decoding": c.decode_seconds, "reading": c.read_seconds, "copy": c.copy_seconds}
        busy = sum(seconds.values()) / max(self.workers, 1)
        if self.gpu_seconds > busy:
            return "gpu decoding"
        return max(seconds, key=seconds.__getitem__) if busy else "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What may be filled, and how fast."""

    ram_bytes: int
    """Free, this process's part of it."""
    disk_bytes: int | None
    """Free where a cache would lie; None where none can."""
    copy_bytes_per_second: float
    """Memory to memory, all decoders together."""
    cache_bytes_per_second: float | None
    """Read from that disk."""


def cache_rates(stages: Stages, *, samples: int, gpu_share: float, wait_share: float, room: Room) -> Rates | None:
    """What `fulltilt.cache.policy.decide` needs to know; None while too little was measured."""
    c, step = stages.counts, stages.step_seconds_per_sample
    if not (step and c.read_samples and c.decode_samples and c.decode_seconds > 0):
        return None
    decode = stages.workers * c.decode_samples / c.decode_seconds
    if 0 < gpu_share < 1 and stages.gpu_seconds > 0:  # each decodes its share of a batch, at the same time
        decode = min(decode / (1 - gpu_share), stages.gpu_samples / stages.gpu_seconds / gpu_share)
    encoded = c.read_bytes / c.read_samples
    return Rates(
        samples=samples,
        step_rate=1 / step,
        decode_rate=decode,
        encoded_bytes=encoded,
        decoded_bytes=c.decode_bytes / c.decode_samples,
        source_bytes_per_second=_source(c, stages.workers, fits=samples * encoded <= room.ram_bytes * RAM_SHARE),
        cache_bytes_per_second=room.cache_bytes_per_second,
        copy_bytes_per_second=room.copy_bytes_per_second,
        free_ram_bytes=room.ram_bytes,
        free_disk_bytes=room.disk_bytes,
        wait_share=wait_share,
    )


def _source(c: Counts, workers: int, *, fits: bool) -> float | None:
    """All decoders' reading, what was in memory counted as free; None where reading will not limit.

    Where the system keeps files that it has read and has room for all of them, the next epoch finds them in memory: to
    keep them a second time would gain nothing.
    """
    if c.cold_samples < _COLD_SHARE * c.read_samples or c.cold_seconds <= 0:
        return None
    if fits and c.looked_again and c.there_again >= c.looked_again / 2:
        return None
    return workers * c.read_bytes / c.cold_seconds
