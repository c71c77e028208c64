"""A loop that waits for its decoders for nine tenths of its time, whatever else the machine does meanwhile."""

from __future__ import annotations

from fulltilt.cache.policy import Rates
from fulltilt.feed.images.stages import Room, Stages, cache_rates
from fulltilt.feed.images.tally import Counts

COUNTS = Counts(
    read_samples=1000,
    read_bytes=1e6,
    read_seconds=0.1,
    decode_samples=1000,
    decode_bytes=1.4e6,
    decode_seconds=20.0,
)
STAGES = Stages(counts=COUNTS, workers=2, step_seconds_per_sample=0.001)


def starving_rates(_: Stages, *, samples: int, gpu_share: float, wait_share: float, room: Room) -> Rates | None:
    """In the place of `cache_rates`: what was measured is left aside, the room is as it was found."""
    return cache_rates(STAGES, samples=samples, gpu_share=0.0, wait_share=0.9, room=room)
