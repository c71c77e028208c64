"""What the guides claim for each workload, and what is wanted of ours. Nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass

UTIL_AT_LEAST, UTIL_STD_AT_MOST = 92.0, 5.0
"""Percent of the time, and points, over the training of *after*."""
SHARE_AT_LEAST = 0.9
"""Of the limit."""
QUALITY_SLACK = 0.02
"""The metric after may lie this far below the one before: two seeds of one training differ as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A guide's own figures, as it words them, and the speed-up that is wanted here."""

    guides: str
    speed: str
    utilisation: str
    speed_up_at_least: float


CLAIMS = {
    "segmentation": Claim(
        guides="000, 002", speed="1.2–1.8×", utilisation="65 → 92 %", speed_up_at_least=3.0
    ),
    "classification": Claim(
        guides="001", speed="45 → 62 it/s, 1.38×", utilisation="65 ± 15 → 92 ± 5 %", speed_up_at_least=62 / 45
    ),
    "forecast": Claim(guides="003", speed="3–6×", utilisation="20–30 → 80–95 %", speed_up_at_least=5.0),
    "video": Claim(
        guides="004", speed="one GPU 1.3–1.5×", utilisation="30–40 → 70–80 %", speed_up_at_least=1.5
    ),
}  # fmt: skip
WORKLOADS = tuple(CLAIMS)
