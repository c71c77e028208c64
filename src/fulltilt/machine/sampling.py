"""The machine sampled by a thread, beside whatever goes on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Self

from fulltilt.errors import InputError
from fulltilt.machine.closing import Closing
from fulltilt.machine.sample import Sample
from fulltilt.machine.sampler import Sampler


class Sampling(Closing):
    """From `start` to `close`, `add` is called with a sample every `interval` seconds: `most` of them, where that is
    given, and at least one, however short the time between.

    The `options` are the `Sampler`'s. It is opened on the thread: the driver takes a while, and nobody waits for it.
    """

    def __init__(
        self, add: Callable[[Sample], Any], interval: float, *, most: int | None = None, **options: Any
    ) -> None:
        self.problem: str | None = None
        """Why no GPU is read; or nothing at all, where the process that was asked for has ended already."""
        self.zero = 0.0
        """Of the samples' times, on the machine's monotonic clock; set before the first of them."""
        self._add, self._interval, self._most, self._options = add, interval, most, options
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fulltilt-sampling", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            sampler = Sampler(**self._options)
        except InputError as error:
            self.problem = str(error)
            return
        with sampler:
            self.problem = sampler.problem
            self.zero = time.monotonic()
            sampler.start()
            self._over.wait(self._interval)
            for taken in count(1):
                self._add(sampler.read())
                if taken == self._most or self._over.wait(self._interval):
                    return
