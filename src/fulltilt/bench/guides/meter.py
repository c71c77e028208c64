"""A loader that is timed, for loops that are not ours: rates, waiting, and an end when time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from torch import Tensor

_END = object()


class TimeUpError(Exception):
    """Raised out of the loader, through whoever's loop it is: it has been measured for long enough."""


class Meter:
    """What a loop did between its warm-up and its end. `finish` closes it."""

    def __init__(
        self,
        *,
        warm: int,
        seconds: float,
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            warm: batches before the measurement begins: workers start, kernels are chosen and compiled.
            seconds: after so long the loader raises `TimeUpError`.
            settle: waits for the device; called when the measurement begins and at each epoch's end, not in between.
        """
        self._warm, self._most, self._settle, self._clock = warm, seconds, settle, clock
        self._batches = 0
        self._opened: float | None = None
        self.began: float | None = None
        """The measurement, on the machine's monotonic clock."""
        self.ended: float | None = None
        self.samples = 0
        self.steps = 0
        self.waited = 0.0
        self.training_seconds = 0.0
        """Of all epochs, what lies between them left out."""

    def open(self) -> None:
        """An epoch begins."""
        if self.began is not None:
            self._opened = self._clock()

    def ask(self) -> float:
        """A batch is asked for, so the step before is launched."""
        if self._batches == self._warm and self.began is None:
            self._settle()
            self.began = self._opened = self._clock()
        now = self._clock()
        if self.began is not None and now - self.began >= self._most:
            self.finish()
            raise TimeUpError
        return now

    def got(self, asked: float, samples: int) -> None:
        self._batches += 1
        if self.began is not None:
            self.waited += self._clock() - asked
            self.samples += samples
            self.steps += 1

    def close(self) -> None:
        """An epoch is over."""
        if self._opened is not None:
            self._settle()
            self.training_seconds += self._clock() - self._opened
            self._opened = None

    def finish(self) -> None:
        """Training is over; a second call does nothing."""
        self.close()
        if self.ended is None and self.began is not None:
            self.ended = self._clock()

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.training_seconds if self.training_seconds and self.samples else None

    @property
    def overall_per_second(self) -> float | None:
        if self.began is None or self.ended is None or not self.samples:
            return None
        return self.samples / (self.ended - self.began)

    @property
    def wait_share(self) -> float | None:
        return min(1.0, self.waited / self.training_seconds) if self.training_seconds else None


class Metered:
    """A loader with a meter at its mouth."""

    def __init__(self, loader: Iterable[Any], meter: Meter) -> None:
        self._loader, self._meter = loader, meter

    def __len__(self) -> int:
        if not isinstance(self._loader, Sized):
            raise TypeError(f"{type(self._loader).__name__} has no length")
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        meter = self._meter
        meter.open()
        try:
            batches = iter(self._loader)
            while True:
                asked = meter.ask()
                batch = next(batches, _END)
                if batch is _END:
                    return
                meter.got(asked, samples_in(batch))
                yield batch
        finally:
            meter.close()


def samples_in(batch: Any) -> int:
    """Of a batch as loaders make them: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    return samples_in(next(iter(batch.values() if isinstance(batch, dict) else batch)))
