"""How many workers: found by trying, with the training's own rate as the measure.

`Tuner` is policy only: it hears what a number of workers gave and says which to try next. `Window` decides when a
measurement is worth hearing. What counts is how fast training goes, not how fast loading could: more workers than it
needs take cores from the thread that launches kernels, so the search goes down as well as up, and of numbers that do
equally well the smallest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fulltilt.machine.decision import Decision

WAITING = 0.02
"""A loop that waits for less than this share of its time is not held up by its feed."""
MARGIN = 0.02
"""Rates closer than this are the same."""
TRIALS = 8
SETTLE_SECONDS = 1.0
MEASURE_SECONDS = 3.0
MEASURE_BATCHES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a number of workers gave."""

    workers: int
    rate: float
    """Samples a second, seen from the training loop."""
    wait_share: float
    """Share of the time that the loop waited for a batch."""


class Tuner:
    """Looks for the smallest number of workers that trains as fast as any."""

    def __init__(self, start: int, most: int) -> None:
        self.workers = min(max(start, 1), most)
        self._most = most
        self.trials: list[Trial] = []
        self.decision: Decision[int] | None = None
        """The choice, once it is made."""

    @property
    def settled(self) -> bool:
        return self.decision is not None

    def observe(self, rate: float, wait_share: float) -> int:
        """Hear what the present number gave; the number to go on with."""
        if self.decision is None:
            self.trials.append(Trial(workers=self.workers, rate=rate, wait_share=wait_share))
            chosen = self._chosen()
            following = self._following(chosen) if len(self.trials) < TRIALS else None
            if following is None:
                self.workers, self.decision = chosen.workers, self._decide(chosen)
            else:
                self.workers = following
        return self.workers

    def _chosen(self) -> Trial:
        best = max(trial.rate for trial in self.trials)
        return min((t for t in self.trials if t.rate >= best * (1.0 - MARGIN)), key=lambda trial: trial.workers)

    def _following(self, chosen: Trial) -> int | None:
        tried = {trial.workers for trial in self.trials}
        higher = min(max(chosen.workers + 1, math.ceil(chosen.workers * 1.5)), self._most)
        lower = max(min(chosen.workers - 1, int(chosen.workers * 0.75)), 1)
        if chosen.wait_share > WAITING and higher not in tried:
            return higher
        return lower if lower not in tried else None

    def _decide(self, chosen: Trial) -> Decision[int]:
        others = ", ".join(f"{t.workers}: {t.rate:,.0f}/s waiting {t.wait_share:.0%}" for t in self.trials)
        why = "the smallest number that trains as fast as any"
        if chosen.wait_share > WAITING:
            why += "; the loop still waits for its feed, so this is what binds"
        return Decision(
            value=chosen.workers,
            reason=f"{why} (tried {others})",
            evidence={"trials": [(t.workers, t.rate, t.wait_share) for t in self.trials]},
        )


class Window:
    """Collects one measurement at a time: lets a change settle, then waits for enough of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Something was changed."""
        self._changed = self._clock()
        self._since: float | None = None
        self._batches = self._samples = 0
        self._waited = 0.0

    def add(self, samples: int, waited: float) -> tuple[float, float] | None:
        """Count a batch; the rate and the share of waiting, when enough has been seen."""
        now = self._clock()
        if self._since is None:
            if now - self._changed >= SETTLE_SECONDS:
                self._since = now
            return None
        self._batches, self._samples, self._waited = self._batches + 1, self._samples + samples, self._waited + waited
        elapsed = now - self._since
        if elapsed < MEASURE_SECONDS or self._batches < MEASURE_BATCHES:
            return None
        measured = self._samples / elapsed, self._waited / elapsed
        self.restart()
        return measured
