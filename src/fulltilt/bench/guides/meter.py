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
        whole: bool = False,
        settle: Callable[[], None] = lambda: None,
        begin: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            warm: batches before the measurement begins: workers start, kernels are chosen and compiled.
            seconds: after so long the loader raises `TimeUpError`.
            whole: measure whole epochs only, each with the start of its workers.
            settle: waits for the device; called when the measurement begins and at each epoch's end, not in between.
            begin: called when the measurement begins.
        """
        self._warm, self._most, self._whole, self._clock = warm, seconds, whole, clock
        self._settle, self._begin = settle, begin
        self._batches = 0
        self._opened: float | None = None
        self._closed: float | None = None
        self._finished = False
        self.began: float | None = None
        """The measurement, on the machine's monotonic clock."""
        self.samples = 0
        self.steps = 0
        self.waited = 0.0
        self.stretches: list[tuple[float, float]] = []
        """From when to when each epoch trained, on the same clock."""
        self.between: list[float] = []
        """Seconds after each of them: validation, a checkpoint."""

    def open(self) -> None:
        """An epoch begins."""
        if self._whole:
            self._look()
        if self.began is not None:
            self._note_between()
            self._opened = self._clock()

    def ask(self) -> float:
        """A batch is asked for, so the step before is launched."""
        if not self._whole:
            self._look()
        return self._clock()

    def _look(self) -> None:
        """Whether it is time to begin, or to end."""
        if self.began is None:
            if self._batches >= self._warm:
                self._settle()
                self._begin()
                self.began = self._opened = self._clock()
        elif self._clock() - self.began >= self._most:
            self.finish()
            raise TimeUpError

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
            self._closed = self._clock()
            self.stretches.append((self._opened, self._closed))
            self._opened = None

    def finish(self) -> None:
        """Training is over; a second call does nothing."""
        if self._finished:
            return
        self._finished = True
        broken_off = self._opened is not None
        self.close()
        if not broken_off:
            self._note_between()

    def _note_between(self) -> None:
        if self._closed is not None:
            self.between.append(self._clock() - self._closed)
            self._closed = None

    @property
    def training_seconds(self) -> float:
        """Of all epochs, what lies between them left out."""
        return sum(ended - began for began, ended in self.stretches)

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.training_seconds if self.training_seconds and self.samples else None

    def overall_per_second(self, *, between_seconds: float | None, every_steps: float) -> float | None:
        """With what lies between epochs, as often as a long training has it: after each `every_steps` once."""
        if self.samples_per_second is None or between_seconds is None:
            return None
        return self.samples / (self.training_seconds + between_seconds * self.steps / every_steps)

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
