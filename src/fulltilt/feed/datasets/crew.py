"""The workers of a feed: their number is changed while training runs, by what the training loop sees."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from fulltilt.feed.busy import BusyMeter, cpu_seconds
from fulltilt.feed.datasets.hosting import Hosting
from fulltilt.feed.datasets.leg import Work
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.tuner import WAITING, Tuner, Window
from fulltilt.machine.decision import Decision

log = logging.getLogger("fulltilt.feed")

_BATCHES_PER_WORKER = 2
"""Workers deliver in bursts: a measurement takes so many from each at least."""
_BUSY = 0.7
"""Workers that are on a core for more than this share of the time are held up by cores."""


class Crew:
    """The workers of a feed, with the one who steers them if their number is to be found."""

    def __init__(
        self, work: Work, hosting: Decision[Hosting], *, tune: bool, own: bool = False, lasting: bool = True
    ) -> None:
        """
        Args:
            own: the number to begin with is somebody's own.
        """
        chosen = hosting.value
        self.hosting = hosting
        self.legs = Legs(work, chosen.workers, lasting=lasting)
        self._steering: Steering | None = None
        if tune:
            tuner = Tuner(
                chosen.workers,
                chosen.most,
                beyond=chosen.beyond,
                least=chosen.least,
                also=chosen.also,
                confirm=own,
            )
            self._steering = Steering(tuner, self.legs)
        self._meter = BusyMeter(lambda: cpu_seconds(self.legs.pids, self.legs.tids))
        log.info("%d %s: %s", chosen.workers, chosen.kind, hosting.reason)

    @property
    def decision(self) -> Decision[int] | None:
        return None if self._steering is None else self._steering.tuner.decision

    def saw(self, samples: int, waited: float) -> None:
        """The loop was given a batch, after so many seconds of waiting."""
        if self._steering is not None:
            self._steering.saw(samples, waited)

    def pause(self) -> None:
        """An epoch is over."""
        if self._steering is not None:
            self._steering.window.pause()

    def go_on(self) -> None:
        """Another begins."""
        if self._steering is not None:
            self._steering.window.go_on()

    def let_go(self) -> None:
        """Somebody else looks for the number of workers."""
        self._steering = None

    def resize(self, workers: int) -> None:
        """Go on with another number, chosen by hand."""
        self.let_go()
        self.legs.resize(workers)

    def figures(self, wait_share: float | None) -> dict[str, Any]:
        """The workers' part of a feed's statistics."""
        workers, cores = self.legs.wanted, self._meter.cores()
        if cores is None:
            self._meter.begin()  # others are there by now
        busy = None if cores is None or not workers else min(cores / workers, 1.0)
        found: dict[str, Any] = {"workers": workers, "worker_kind": self.hosting.value.kind, "worker_busy_share": busy}
        if wait_share is not None:
            found["bottleneck"] = bottleneck(wait_share, busy)
        return found


def bottleneck(wait_share: float, busy_share: float | None) -> str:
    """Who is slowest: the training step, the workers' cores, or what the workers wait for."""
    if wait_share <= WAITING:
        return "step"
    if busy_share is None:
        return "feed"
    return "computing" if busy_share >= _BUSY else "reading"


class Steering:
    """A tuner with its hands on the legs."""

    def __init__(self, tuner: Tuner, legs: Legs, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.tuner, self._legs = tuner, legs
        self.window = Window(clock)
        self._busy = BusyMeter(lambda: cpu_seconds(legs.pids, legs.tids), clock)
        self._changing = True
        """The present number has not come to its rate yet."""
        self._counting = False

    def saw(self, samples: int, waited: float) -> None:
        """The loop was given a batch, after so many seconds of waiting."""
        if self.tuner.settled:
            return
        if self._changing:
            self._changing = not self._legs.steady
            self.window.restart(batches=_BATCHES_PER_WORKER * self.tuner.workers)
            return
        measured = self.window.add(samples, waited)
        if self.window.counting and not self._counting:
            self._busy.begin()
        self._counting = self.window.counting
        if measured is not None:
            self._heard(*measured)

    def _heard(self, rate: float, wait_share: float) -> None:
        before = self.tuner.workers
        self.tuner.observe(rate, wait_share, self._busy.cores())
        self.window.restart(batches=_BATCHES_PER_WORKER * self.tuner.workers)
        if self.tuner.workers != before:
            self._changing = True
            self._legs.resize(self.tuner.workers)
        if self.tuner.decision is not None:
            log.info("%d workers: %s", self.tuner.decision.value, self.tuner.decision.reason)
