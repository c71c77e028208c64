"""How many workers: found by trying, with the training's own rate as the measure.

`Tuner` is policy only: it hears what a number of workers gave and says which to try next. `Window` decides when a
measurement is worth hearing. What counts is how fast training goes, not how fast loading could: more workers than it
needs take cores from the thread that launches kernels, so the search goes down as well as up, and of numbers that do
equally well the smallest is kept that has a little to spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fulltilt.machine.decision import Decision

WAITING = 0.02
"""A loop that waits for less than this share of its time is not held up by its feed."""
MARGIN = 0.02
"""Rates closer than this are the same."""
SLACK = 0.95
"""Workers that keep up, but are on a core for more of their time than this, only just do: soon they may not."""
TRIALS = 10
FIRST_TRIALS = 3
"""Measurements of the first number at most: until two in a row agree, for training may be warming up."""
BEYOND_CORES = 4
"""Workers that wait for files or a network may be more than the cores: as many as fill them, up to so many times."""
LEAP = 4.0
"""The largest step upward, as a factor."""
FINE = 1.12
"""Between numbers no further apart than this factor nothing is tried."""
SETTLE_SECONDS = 0.7
MEASURE_SECONDS = 2.0
MEASURE_BATCHES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a number of workers gave."""

    workers: int
    rate: float
    """Samples a second, seen from the training loop."""
    wait_share: float
    """Share of the time that the loop waited for a batch."""
    cores_used: float | None = None
    """CPU time per second of all workers together."""

    @property
    def only_just(self) -> bool:
        """The loop does not wait, and yet the workers have no time to spare."""
        used = self.cores_used
        return used is not None and self.wait_share <= WAITING and used > SLACK * self.workers


class Tuner:
    """Looks for the smallest number of workers that trains as fast as any."""

    def __init__(
        self,
        start: int,
        most: int,
        *,
        beyond: int | None = None,
        least: int = 1,
        also: Sequence[int] = (),
        confirm: bool = False,
    ) -> None:
        """
        Args:
            most: as many as there are cores for workers that compute all the time.
            beyond: as many as are tried where they wait for something else; counts only if `observe` hears of cores.
            also: numbers that are worth a trial whatever their neighbours give, such as none at all.
            confirm: the first number is somebody's own. It is measured again at the end, and another kept only if that
                is not slower: what else the machine does may have changed meanwhile.
        """
        self._also, self._confirm = tuple(also), confirm
        self._candidate: Trial | None = None
        """What would be chosen, while the first number is measured again."""
        self._most, self._beyond, self._least = most, max(most, beyond or most), least
        self.workers = min(max(start, least), most)
        self.trials: list[Trial] = []
        self._first: list[float] = []
        self.decision: Decision[int] | None = None
        """The choice, once it is made."""

    @property
    def settled(self) -> bool:
        return self.decision is not None

    def settle(self, workers: int, reason: str) -> None:
        """End the search with a number that was found otherwise."""
        self.workers, self.decision = workers, Decision(value=workers, reason=reason)

    def observe(self, rate: float, wait_share: float, cores_used: float | None = None) -> int:
        """Hear what the present number gave; the number to go on with."""
        if self.decision is None and self._is_steady(rate):
            self.trials.append(
                Trial(workers=self.workers, rate=rate, wait_share=wait_share, cores_used=cores_used),
            )
            self._go_on(self._chosen())
        return self.workers

    def _go_on(self, chosen: Trial) -> None:
        if self._candidate is not None:
            own = self.trials[-1]
            chosen = self._candidate if self._candidate.rate >= own.rate * (1.0 - MARGIN) else own
            following = None
        else:
            following = self._following(chosen) if len(self.trials) < TRIALS else None
            if following is None and self._confirm and chosen.workers != self.trials[0].workers:
                self._candidate, following = chosen, self.trials[0].workers
        if following is None:
            self.workers, self.decision = chosen.workers, self._decide(chosen)
        else:
            self.workers = following

    def _is_steady(self, rate: float) -> bool:
        """Whether the first number's rate has stopped changing: the others are compared with it."""
        if self.trials:
            return True
        self._first.append(rate)
        agree = len(self._first) > 1 and abs(rate - self._first[-2]) <= MARGIN * max(rate, self._first[-2])
        return agree or len(self._first) == FIRST_TRIALS

    def _chosen(self) -> Trial:
        best = max(trial.rate for trial in self.trials)
        equal = [trial for trial in self.trials if trial.rate >= best * (1.0 - MARGIN)]
        largest = max(equal, key=lambda trial: trial.workers)
        return min((t for t in equal if not t.only_just), key=lambda trial: trial.workers, default=largest)

    def _following(self, chosen: Trial) -> int | None:
        """Upward while the loop waits, then downward; the gaps to what was tried on either side are halved."""
        tried = {trial.workers: trial for trial in self.trials}
        for number in self._also:
            if number not in tried:
                return number
        below = max((number for number in tried if number < chosen.workers), default=None)
        above = min((number for number in tried if number > chosen.workers), default=None)
        if chosen.wait_share > WAITING or chosen.only_just:
            if above is None and chosen.workers < (ceiling := self._ceiling(chosen)):
                return min(_upward(chosen), ceiling)
            if above is not None and (middle := _between(chosen.workers, above)) is not None:
                return middle
        if below is not None:
            return None if _still_grows(tried[below], chosen) else _between(below, chosen.workers)
        return max(chosen.workers // 2, self._least) if chosen.workers > self._least else None

    def _ceiling(self, chosen: Trial) -> int:
        """As many as would fill the cores, going by what the present ones take of them."""
        if chosen.cores_used is None or not chosen.workers:
            return self._most
        full = math.ceil(self._most * chosen.workers / max(chosen.cores_used, 1e-3))
        return min(max(full, self._most), self._beyond)

    def _decide(self, chosen: Trial) -> Decision[int]:
        others = ", ".join(f"{t.workers}: {t.rate:,.0f}/s waiting {t.wait_share:.0%}" for t in self.trials)
        why = "the smallest number that trains as fast as any, with a little to spare"
        if self._candidate is not None and chosen is not self._candidate:
            why = f"{self._candidate.workers} was no faster when the first number was measured again"
        if chosen.wait_share > WAITING:
            why += "; the loop still waits for its feed, so this is what binds"
        return Decision(
            value=chosen.workers,
            reason=f"{why} (tried {others})",
            evidence={"trials": [(t.workers, t.rate, t.wait_share) for t in self.trials]},
        )


def _still_grows(below: Trial, chosen: Trial) -> bool:
    """The loop waits and each worker brings as much as before: fewer would be slower."""
    return chosen.wait_share > WAITING and below.rate * chosen.workers <= 1.05 * chosen.rate * below.workers


def _upward(trial: Trial) -> int:
    """As many as the loop would need if each brought as much as now: so much that it no longer waits."""
    factor = min(max(1.0 / max(1.0 - trial.wait_share, 1e-3), 1.25), LEAP)
    return max(trial.workers + 1, math.ceil(trial.workers * factor))


def _between(low: int, high: int) -> int | None:
    """A number that halves the ratio of two others; None where they are close enough."""
    if high - low <= 1 or high <= low * FINE:
        return None
    return min(max(round(math.sqrt(max(low, 0.5) * high)), low + 1), high - 1)


class Window:
    """Collects one measurement at a time: lets a change settle, then waits for enough of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.restart()

    def restart(self, *, batches: int = MEASURE_BATCHES) -> None:
        """Something was changed; a measurement takes so many batches at least, for many workers deliver in bursts."""
        self._changed = self._clock()
        self._paused: float | None = None
        self._wanted = max(batches, MEASURE_BATCHES)
        self._since: float | None = None
        self._batches = self._samples = 0
        self._waited = 0.0

    def pause(self) -> None:
        """The loop does something else, such as validation, until `go_on`: that time does not count."""
        self._paused = self._clock()

    def go_on(self) -> None:
        """Without a pause before it the loop was broken off: what was measured is given up."""
        if self._paused is None:
            self.restart(batches=self._wanted)
            return
        gone = self._clock() - self._paused
        self._paused = None
        self._changed += gone
        if self._since is not None:
            self._since += gone

    @property
    def counting(self) -> bool:
        """The change has settled: what comes is measured."""
        return self._since is not None

    def add(self, samples: int, waited: float) -> tuple[float, float] | None:
        """Count a batch; the rate and the share of waiting, when enough has been seen."""
        now = self._clock()
        if self._since is None:
            if now - self._changed >= SETTLE_SECONDS:
                self._since = now
            return None
        self._batches, self._samples, self._waited = self._batches + 1, self._samples + samples, self._waited + waited
        elapsed = now - self._since
        if elapsed < MEASURE_SECONDS or self._batches < self._wanted:
            return None
        measured = self._samples / elapsed, self._waited / elapsed
        self.restart()
        return measured
