"""Results as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fulltilt.bench.results import Result, as_measured
from fulltilt.bench.target import Target, in_json

FIGURES = {
    "gpu_ms": "GPU ms",
    "wall_ms": "wall ms",
    "floor_ratio": "times the memory floor",
    "times_kornia": "times faster than Kornia",
    "times_triton_augment": "times faster than triton-augment",
}
"""What a target can be about, and how to say it."""


def target(figure: str, wanted: float) -> Target:
    """Times are at most so long, and others' so many times longer at least."""
    return Target(figure=figure, wanted=wanted, at_most=not figure.startswith("times_"), what=FIGURES[figure])


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One contender's times per call, medians. What could not be taken is absent."""

    gpu_ms: float | None = None
    """Between CUDA events around several calls in a queue that is kept full."""
    graph_ms: float | None = None
    """The same calls replayed as a CUDA graph: no launch gaps."""
    wall_ms: float
    """Calls back to back, the host's work included, waited for at the end."""
    host_us: float | None = None
    """Until the call returns, with room in the GPU's queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was timed against the torch path on the CPU, with outputs poisoned beforehand."""

    samples: int
    worst: float
    """The largest difference between images, in units of what is allowed (1/255 plus rounding); NaN is wrong."""
    wrong_labels: float | None
    """Share of mask pixels that differ; absent without masks."""
    unwritten: int
    """Values of the whole batch that still held the poison."""

    @property
    def right(self) -> bool:
        return self.worst <= 1.0 and self.unwritten == 0 and (self.wrong_labels or 0.0) <= 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of our own cases."""

    key: str
    title: str
    timing: Timing | None = None
    floor_ms: float | None = None
    """What the memory alone takes, at the copy rate of the same run."""
    wanted: tuple[Target, ...] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Speed-ups that targets are about, in wall time."""
    check: Check | None = None
    problem: str | None = None
    """Why there are no times, or why one is missing."""

    @property
    def floor_ratio(self) -> float | None:
        if self.timing is None or self.timing.gpu_ms is None or not self.floor_ms:
            return None
        return self.timing.gpu_ms / self.floor_ms

    @property
    def targets(self) -> tuple[Target, ...]:
        """With what was found."""
        known = {"floor_ratio": self.floor_ratio, **self.ratios}
        return tuple(
            target.given(known.get(target.figure, getattr(self.timing, target.figure, None))) for target in self.wanted
        )

    def wrong(self) -> str | None:
        """What is not right about it."""
        if self.check is None or self.check.right:
            return None
        return (
            f"WRONG: {self.title}: images {self.check.worst:.2g} × the allowed difference, "
            f"labels wrong {self.check.wrong_labels or 0:.2g}, unwritten {self.check.unwritten}"
        )

    def to_json(self) -> dict[str, Any]:
        timing = asdict(self.timing) if self.timing else {}
        return {
            "key": self.key,
            "title": self.title,
            **timing,
            "floor_ms": self.floor_ms,
            "floor_ratio": self.floor_ratio,
            "targets": in_json(self.targets),
            "check": {**asdict(self.check), "right": self.check.right} if self.check else None,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another way to do the task."""

    name: str
    takes: str
    """What it was given and what it gave, where that differs from ours."""
    masks: bool = False
    timing: Timing | None = None
    problem: str | None = None
    """Why there are no times: not installed, an error, skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentBench(Result):
    task: str
    copy_tb_per_s: float | None = None
    """Device memory, bytes read plus bytes written."""
    cases: tuple[Case, ...] = ()
    """The first is the task itself."""
    peers: tuple[Peer, ...] = ()

    def speedup(self, peer: Peer) -> float | None:
        """How many times longer the peer takes than ours, in wall time."""
        ours = self.cases[0].timing if self.cases else None
        return peer.timing.wall_ms / ours.wall_ms if ours and peer.timing else None

    def gpu_speedup(self, peer: Peer) -> float | None:
        """The same for the time on the GPU."""
        ours = self.cases[0].timing if self.cases else None
        if ours is None or peer.timing is None or not ours.gpu_ms or not peer.timing.gpu_ms:
            return None
        return peer.timing.gpu_ms / ours.gpu_ms

    @property
    def right(self) -> bool:
        """Every output that was compared is right."""
        return all(case.check.right for case in self.cases if case.check is not None)

    def to_json(self) -> dict[str, Any]:
        peers = [
            {
                "name": peer.name,
                "takes": peer.takes,
                "masks": peer.masks,
                **(asdict(peer.timing) if peer.timing else {}),
                "speedup": self.speedup(peer),
                "gpu_speedup": self.gpu_speedup(peer),
                "problem": peer.problem,
            }
            for peer in self.peers
        ]
        return {**Result.to_json(replace(self, peers=())), "peers": as_measured(peers)}
