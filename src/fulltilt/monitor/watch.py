"""Time: samples at an even pace from the machine or from a recording, until they end or someone asks to stop."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Protocol, Self

from fulltilt.machine.sample import Sample


class Stop:
    """While open, Ctrl-C and SIGTERM ask for an orderly end instead of breaking off; a second one breaks off."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}
        # A signal handler may run between any two steps of the main thread, so it takes no lock: it writes one byte.
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        os.close(self._reading)
        os.close(self._writing)

    def wait(self, seconds: float) -> bool:
        """Sleep; True as soon as someone asks to stop."""
        if not self.asked and seconds > 0:
            select.select([self._reading], [], [], seconds)
        return self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked = True
        os.write(self._writing, b"!")
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


class Source(Protocol):
    """What can be sampled: `fulltilt.machine.sampler.Sampler`, or a stand-in."""

    @property
    def ended(self) -> str | None: ...
    def start(self) -> None: ...
    def read(self) -> Sample: ...


def sampled(source: Source, stop: Stop, *, interval: float, duration: float | None) -> Iterator[Sample]:
    """A sample every `interval` seconds, for `duration` seconds or until asked to stop.

    Each is due at a whole multiple of the interval after the start, so that delays don't add up; one that is missed is
    left out, not made up for. At least one sample is taken, however early the end.
    """
    source.start()
    start = time.monotonic()
    ticks = 0
    while True:
        ticks += 1
        stopped = stop.wait(start + ticks * interval - time.monotonic())
        if stopped and ticks > 1:
            return
        yield source.read()
        ticks = max(ticks, int((time.monotonic() - start) / interval))
        over = duration is not None and (ticks + 1) * interval > duration + interval / 2
        if stopped or over or source.ended is not None:
            return


def replayed(samples: Sequence[Sample], stop: Stop, *, speed: float) -> Iterator[Sample]:
    """The samples of a recording at the pace at which they were taken, `speed` times as fast."""
    start = time.monotonic()
    for sample in samples:
        if stop.wait(start + (sample.t - samples[0].t) / speed - time.monotonic()):
            return
        yield sample


class Kept:
    """Samples kept for a page's charts: all of them at first, every other one each time that they grow too many."""

    def __init__(self, most: int = 20_000) -> None:
        self.samples: list[Sample] = []
        self._most = most
        self._every = 1
        self._seen = 0

    def add(self, sample: Sample) -> None:
        """Keep this sample, if its turn it is."""
        if self._seen % self._every == 0:
            self.samples.append(sample)
            if len(self.samples) > self._most:
                del self.samples[1::2]
                self._every *= 2
        self._seen += 1

    def cut(self, seconds: float) -> None:
        """Drop what came later."""
        self.samples = [sample for sample in self.samples if sample.t <= seconds]
