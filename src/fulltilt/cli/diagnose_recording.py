"""The machine, recorded while a script is watched: for the charts on its page."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fulltilt.machine.sample import Sample

INTERVAL_SECONDS = 0.5


class Recording:
    """While open, a thread takes a sample twice a second: little beside a script that trains."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._over = Event()
        self._thread = Thread(target=self._record, name="fulltilt-recording", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def cut(self, seconds: float) -> None:
        """Nobody wants to see what lies behind them."""
        self.samples = [sample for sample in self.samples if sample.t <= seconds]

    def _record(self) -> None:
        from fulltilt.machine.sampler import Sampler
        from fulltilt.monitor.watch import Kept

        kept = Kept()
        self.samples = kept.samples
        with Sampler() as sampler:
            sampler.start()
            while not self._over.wait(INTERVAL_SECONDS):
                kept.add(sampler.read())
