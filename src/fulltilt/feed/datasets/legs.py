"""All legs on one stream of requests: the number of workers changes while batches come, and the dead are replaced."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fulltilt.errors import WorkerError
from fulltilt.feed.datasets.leg import DeadWorkerError, Leg, Work
from fulltilt.feed.datasets.shelf import Request

log = logging.getLogger("fulltilt.feed")

_DEATHS_PER_BATCH = 2
"""A batch at which workers end so often is given up."""


class Legs:
    """Batches of a stream of requests, in order. Iterated by one thread; the others may `resize`."""

    def __init__(self, work: Work, workers: int, *, lasting: bool = True) -> None:
        """
        Args:
            lasting: workers are kept when another stream begins; False starts new ones, which see the data set anew.
        """
        self._work, self._lasting = work, lasting
        self.wanted = workers
        self.lasts = True
        """Whether there is a use for workers in place of those that die."""
        self._legs: deque[Leg] = deque()
        self._stream: Iterator[Request] = iter(())
        self._deaths = 0

    def begin(self, stream: Iterator[Request]) -> Legs:
        """Go on with another stream; what was under way is dropped."""
        self._stream, self._deaths = stream, 0
        kept = self._legs.pop() if self._lasting and self._legs and self._is_wanted(self._legs[-1]) else None
        self.close()
        self._add(stream, kept)
        return self

    def resize(self, workers: int) -> None:
        """Go on with another number of workers from the next batch on."""
        self.wanted = workers

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch, from the oldest leg that has one left."""
        if len(self._legs) == 1 and not self._is_wanted(self._legs[0]):
            self._change()
        while True:
            try:
                batch = self._legs[0].next()
            except StopIteration:
                if len(self._legs) == 1:
                    raise
                self._legs.popleft().close()
            except DeadWorkerError as error:
                if not self.lasts:
                    raise
                self._replace(error)
            else:
                self._deaths = 0
                return batch

    @property
    def steady(self) -> bool:
        """One leg, of the wanted number, has given all that it took at its beginning: what comes now is its rate."""
        legs = list(self._legs)
        return (
            len(legs) == 1 and self._is_wanted(legs[0]) and legs[0].given >= max(legs[0].workers, 1) * self._work.depth
        )

    @property
    def pids(self) -> list[int]:
        return [pid for leg in list(self._legs) for pid in leg.pids]

    @property
    def tids(self) -> list[int]:
        return [tid for leg in list(self._legs) for tid in leg.tids]

    def close(self) -> None:
        """End all workers."""
        while self._legs:
            self._legs.popleft().close()

    def _is_wanted(self, leg: Leg) -> bool:
        return leg.workers == self.wanted

    def _change(self) -> None:
        """The present leg gives out what it has taken, while the next one already works ahead."""
        self._legs[0].stop()
        self._add(self._stream)

    def _add(self, stream: Iterator[Request], leg: Leg | None = None) -> None:
        leg = self._work.leg(self.wanted) if leg is None else leg
        self._legs.append(leg)
        leg.begin(stream)

    def _replace(self, error: DeadWorkerError) -> None:
        """What the dead and all others had taken is made again, one batch at a time; new workers go on with the rest.

        One at a time, so that another death can be told exactly.
        """
        self._deaths += 1
        if self._deaths >= _DEATHS_PER_BATCH:
            raise WorkerError(
                f"{error}, as one before it. The system does that when memory runs short: try fewer workers or smaller "
                "batches; otherwise look at these samples with num_workers=0"
            ) from error.__cause__
        log.warning("%s; new workers go on with it", error)
        again = [request for leg in self._legs for request in leg.outstanding]
        self.close()
        self._add(iter(again), replace(self._work, depth=1).leg(1))
        self._add(self._stream)
