"""The machine, read beside a loop by a thread: what `fulltilt monitor` does from outside."""

from __future__ import annotations

import os
import threading

from fulltilt.machine.sampler import Sampler
from fulltilt.monitor.summary import Summary, Tally


class Sampling:
    """A sample every `interval` seconds, from `start` to `end`; at least one, however short the time between."""

    def __init__(self, interval: float) -> None:
        self.problem: str | None = None
        """Why no GPU is read."""
        self._interval = interval
        self._tally = Tally()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fulltilt-sampling", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> Summary:
        """Stop reading."""
        self._over.set()
        self._thread.join()
        return self._tally.summary()

    def _run(self) -> None:
        with Sampler(pid=os.getpid()) as sampler:
            self.problem = sampler.problem
            sampler.start()
            count = 0
            while not self._over.wait(self._interval):
                self._tally.add(sampler.read())
                count += 1
            if not count:
                self._tally.add(sampler.read())
