"""The balance with its hands on clips: the number of workers, and the GPU's share, by what the training loop sees."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fulltilt.feed.balance import Balance, Seen
from fulltilt.feed.busy import BusyMeter, cpu_seconds
from fulltilt.feed.datasets.legs import Legs
from fulltilt.feed.tuner import Window
from fulltilt.machine.decision import Decision

log = logging.getLogger("fulltilt.feed")

_BATCHES_PER_WORKER = 2
"""Workers deliver in bursts: a measurement takes so many from each at least."""


class Sharing:
    """Hears of every batch; changes the number of workers itself, and says which share to go on with."""

    def __init__(
        self,
        balance: Balance,
        legs: Legs,
        *,
        threads: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            threads: of each worker's decoder; None where their CPU time can't be seen.
        """
        self.balance, self._legs, self._threads = balance, legs, threads
        self.window = Window(clock)
        self._meter = BusyMeter(lambda: cpu_seconds(legs.pids, legs.tids), clock)
        self.share = balance.share
        """To go on with; None where it is not looked for."""
        self._arriving = True
        """What was changed has not reached the loop yet: batches that were begun before come first."""

    @property
    def decisions(self) -> tuple[Decision[float] | None, Decision[int] | None]:
        """Of the share and of the number of workers."""
        share, tuner = self.balance.share_tuner, self.balance.tuner
        return None if share is None else share.decision, None if tuner is None else tuner.decision

    def without_share(self) -> None:
        """The GPU decodes nothing from now on."""
        self.balance.without_share()
        self.share = None

    def settle(self) -> None:
        """Look no further."""
        self.balance.settle()
        self._arriving = self._arriving or self.balance.share != self.share
        self.share = self.balance.share

    def saw(self, samples: int, waited: float, share: float) -> None:
        """The loop was given a batch that was begun with this share, after so many seconds of waiting."""
        if not self.balance.adapts:
            return
        if self._arriving:
            self._arriving = not (self._legs.steady and share == (self.share or 0.0))
            self.window.restart(batches=_BATCHES_PER_WORKER * self.balance.workers)
            return
        counting = self.window.counting
        measured = self.window.add(samples, waited)
        if self.window.counting and not counting:
            self._meter.begin()
        if measured is not None:
            self._heard(*measured)

    def _heard(self, rate: float, wait_share: float) -> None:
        balance, before, reopened = self.balance, self.decisions, self.balance.reopened
        workers, cores = balance.workers, self._meter.cores()
        balance.observe(
            Seen(
                rate=rate,
                wait_share=wait_share,
                cores_used=None if balance.state == "settled" else cores,
                decoder_rate=self._possible(rate, cores),
            )
        )
        if balance.reopened != reopened:
            log.info("looking for another balance: %s", balance.why)
        if balance.workers != workers:
            self._legs.resize(balance.workers)
            self._arriving = True
        if balance.share != self.share:
            self.share, self._arriving = balance.share, True
        self.window.restart(batches=_BATCHES_PER_WORKER * balance.workers)
        share, number = self.decisions
        if share is not None and share is not before[0]:
            log.info("%.0f %% decoded by the GPU: %s", 100 * share.value, share.reason)
        if number is not None and number is not before[1]:
            log.info("%d workers: %s", number.value, number.reason)

    def _possible(self, rate: float, cores: float | None) -> float | None:
        """Samples a second that the workers would give if they never waited for work: they have so many cores."""
        if self._threads is None or not cores:
            return None
        return rate * (1 - (self.share or 0.0)) * max(1.0, self.balance.workers * self._threads / cores)
