"""What watching a script costs it: the same loop with and without the hooks. Behind `fulltilt bench observe`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from fulltilt.bench.ground import machine_facts, now
from fulltilt.bench.results import as_measured
from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import Target, in_json, target_lines
from fulltilt.errors import UnavailableError, last_line

SHORT_MS = 2.0
"""Steps up to here may cost MOST_MS more, longer ones MOST_SHARE of themselves."""
MOST_MS = 0.05
MOST_SHARE = 0.01
RUNS = 3
QUICK_RUNS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One length of step."""

    asked_ms: float
    plain_ms: float
    """A step without the hooks: the median over blocks."""
    watched_ms: float
    """And with them, over a whole run."""
    first_ms: float
    """What the first steps of a run cost, all of which are watched."""
    added_ms: float
    """What a run's steps cost: these, and all others in their measure."""
    noise_ms: float
    """How sure that is: half the middle half of the differences, over the root of their number."""
    blocks: int
    pairs_ms: tuple[tuple[float, float], ...]
    """Of each pair of neighbours, without and with."""

    @property
    def share(self) -> float:
        return self.added_ms / self.plain_ms

    @property
    def target(self) -> Target:
        if self.asked_ms <= SHORT_MS:
            return Target(figure="added_ms", wanted=MOST_MS, found=self.added_ms, at_most=True, unit=" ms")
        return Target(figure="share", wanted=MOST_SHARE, found=self.share, at_most=True, percent=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveBench:
    machine: dict[str, Any]
    date: str
    device: str
    costs: tuple[Cost, ...]

    def to_json(self) -> dict[str, Any]:
        costs = [{**asdict(cost), "share": cost.share, "targets": in_json([cost.target])} for cost in self.costs]
        return {"machine": self.machine, "date": self.date, "device": self.device, "costs": as_measured(costs)}


def measure(*, quick: bool, say: Callable[[str], None], device: str | None = None) -> ObserveBench:
    """In a process of its own, since hooks are put into torch."""
    device = device or _device()
    say(f"steps of 1, 10 and 100 ms on {device}, watched in every other block")
    command = [sys.executable, "-m", "fulltilt.bench.observed", device, str(QUICK_RUNS if quick else RUNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = last_line(done.stderr, "no message")
        raise UnavailableError(f"the loop could not be run on {device}: {why}")
    found = json.loads(done.stdout)
    return ObserveBench(
        machine=machine_facts({}),
        date=now(),
        device=device,
        costs=tuple(cost(float(asked), **blocks) for asked, blocks in found["steps"].items()),
    )


def cost(
    asked_ms: float, *, steps: Sequence[int], first: Sequence[bool], plain: Sequence[float], watched: Sequence[float]
) -> Cost:
    """From pairs of neighbouring blocks: their steps, whether they are a run's first, seconds of a step in both."""
    added = [(after - before) * 1e3 for before, after in zip(plain, watched, strict=True)]
    kinds = {
        kind: [one for one, its in zip(added, first, strict=True) if its is kind]
        for kind in (True, False)
        if kind in first
    }
    parts = {kind: sum(count for count, its in zip(steps, first, strict=True) if its is kind) for kind in kinds}
    whole = sum(middle(kinds[kind]) * parts[kind] for kind in kinds) / sum(parts.values())
    ordered, quarter = sorted(added), len(added) // 4
    return Cost(
        asked_ms=asked_ms,
        plain_ms=median(plain) * 1e3,
        watched_ms=median(plain) * 1e3 + whole,
        first_ms=middle(kinds[True]),
        added_ms=whole,
        noise_ms=(ordered[-1 - quarter] - ordered[quarter]) / 2 / math.sqrt(len(added)),
        blocks=len(added),
        pairs_ms=tuple((round(one * 1e3, 4), round(two * 1e3, 4)) for one, two in zip(plain, watched, strict=True)),
    )


def middle(values: Sequence[float]) -> float:
    """The mean of their middle half: a machine's moods leave it alone, and it has what comes in every other block."""
    ordered, quarter = sorted(values), len(values) // 4
    return fmean(ordered[quarter : len(ordered) - quarter])


def show(found: ObserveBench) -> None:
    table = figures_table(f"Watching, {found.device}", "plain", "watched", "added", "±", "share", name="step")
    for one in found.costs:
        table.add_row(
            f"{one.asked_ms:g} ms",
            f"{one.plain_ms:.3f} ms",
            f"{one.watched_ms:.3f} ms",
            f"{one.added_ms:+.4f} ms",
            f"{one.noise_ms:.4f} ms",
            f"{one.share:+.2%}",
        )
    console = console_or(None)
    console.print(table)
    print_lines(console, target_lines((f"steps of {one.asked_ms:g} ms", one.target) for one in found.costs))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
