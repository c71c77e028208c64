"""What every feed is, whatever it is made of: batches to iterate over, and a place that can be saved."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain, count
from typing import Any, Final

from torch import Tensor

from fulltilt.errors import InputError
from fulltilt.feed.order import Indices, Order, Step
from fulltilt.machine.closing import Closing

Tensors = tuple[Tensor, ...]
NOTHING: Final = object()
"""In a batch's place: all of its samples were left out, and the loop goes on with the next."""


class Feed(Closing):
    """Batches on the device, ahead of the step. Made by `feed`.

    One `for` loop is one epoch; a loop that is broken off is not taken up again, unless its place was saved and loaded.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._clock = Clock()
        self._closed = False
        self._loop: object | None = None
        """The loop that is served."""
        self.augmentation: Any = None
        """What batches go through on their way; for image files also what only makes them one size."""
        self.classes: list[str] | None = None
        """Names of the classes in the order of their numbers, where labels came as names."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The epoch's batches."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch's beginning."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the feed stands: what has been given out, not what is under way."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def inspect_with(self, look: Callable[[Any], None]) -> bool:  # noqa: ARG002  # for feeds that have something
        """Have `look` see every batch on the host, before it is sent: whoever looks at it later waits for the device.

        It is called by the thread that fetches, and what it raises comes out of the loop in that batch's place. Samples
        that are in memory from the beginning it sees here and now, all as one batch; of image files that is their
        labels, with None for what is not decoded yet. To be called before the first loop. False: nothing is shown.
        """
        return False

    @property
    def waited_seconds(self) -> float:
        """How long training has waited for batches so far, in all.

        A loop that is ahead of its device is held up, too, until the device has done some of what was launched: that is
        no waiting for data.
        """
        return self._clock.waited_seconds

    def stats(self) -> dict[str, Any]:
        """Rates so far, seen from the loop."""
        return self._clock.figures()

    def close(self) -> None:
        """Stop what runs and free what is held; a second time does nothing."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this feed is closed; make a new one")

    def _check_served(self, loop: object) -> None:
        """Before a loop is given another batch: the feed may have been closed in it, or another loop begun."""
        self._check_open()
        if self._loop is not loop:
            raise InputError("another loop over this feed has begun: one at a time; make a second feed for two")


class OrderedFeed(Feed):
    """A feed that follows an `Order`: it can be resumed anywhere, also at another batch size or world size.

    The next epoch's first batches are prepared while this one ends.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order
        self._position = 0
        self._follows = False
        """The last epoch was gone through to its end: its successor is under way."""
        self._resumes = False
        """The position was loaded: the next loop goes on from it."""
        self.indices: Indices | None = None
        """The samples of the batch that was given out last, by their numbers in the source."""

    def __len__(self) -> int:
        return self.order.steps()

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        if not self._follows:
            if (self._position and not self._resumes) or self.order.steps(self._position) == 0:
                self._epoch, self._position = self._epoch + 1, 0
            self._begin(_steps(self.order, self._epoch, self._position))
        self._follows = self._resumes = False
        self._clock.began()
        self._went_on()
        self._loop = loop = object()
        while True:
            self._check_served(loop)
            step, batch = self._next()
            self._position = step.position
            if step.last:
                self._epoch, self._position, self._follows = self._epoch + 1, 0, True
                self._ended(step.epoch)
            if batch is not NOTHING:
                self._clock.gave(len(step.indices))
                self.indices = step.indices
                yield batch
            if step.last:
                self._paused()
                return

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch's beginning; of the epoch whose place was loaded, to that place."""
        if epoch == self._epoch and (self._resumes or not self._position):
            return
        self._epoch, self._position, self._follows, self._resumes = epoch, 0, False, False

    def state_dict(self) -> dict[str, Any]:
        order = self.order
        return {
            "epoch": self._epoch,
            "position": self._position,
            "seed": int(order.seed),
            "shuffle": order.shuffle,
            "length": order.length,
            **({"together": order.together} if order.together > 1 else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        missing = self.state_dict().keys() - state.keys() - {"together"}
        if missing:
            raise InputError(f"this is not the state of such a feed: {', '.join(sorted(missing))} missing")
        for name in ("seed", "shuffle", "length", "together"):
            if state.get(name, 1) != getattr(self.order, name):
                raise InputError(
                    f"this feed has {name}={getattr(self.order, name)!r}, the saved one had {state.get(name, 1)!r}: "
                    "what is left of the epoch would not be what was left of that one"
                )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._follows, self._resumes = False, True

    @abstractmethod
    def _begin(self, steps: Iterator[Step]) -> None:
        """Start anew with these steps."""

    @abstractmethod
    def _next(self) -> tuple[Step, Any]:
        """The next step's batch."""

    def _paused(self) -> None:
        """An epoch's last batch has been used: what the trainer does until the next epoch is not the feed's concern."""

    def _went_on(self) -> None:
        """An epoch's first batch is about to be asked for."""

    def _ended(self, epoch: int) -> None:
        """An epoch's last batch is about to be given out."""


class Clock:
    """Waiting and throughput, on the host."""

    def __init__(self) -> None:
        self._started: float | None = None
        self.waited_seconds = 0.0
        self._samples = 0
        self._batches = 0
        self._began, self._waited_before = 0.0, 0.0
        """When the epoch began, and what had been waited until then."""
        self._gave: float | None = None
        """When the epoch's last batch so far was given."""

    def began(self) -> None:
        """An epoch's first batch is about to be asked for."""
        self._began, self._waited_before, self._gave = time.perf_counter(), self.waited_seconds, None

    def waited(self, seconds: float) -> None:
        """The loop had nothing to go on with for so long."""
        if self._started is None:
            self._started = time.perf_counter() - seconds
        self.waited_seconds += seconds

    def gave(self, samples: int) -> None:
        self._gave = time.perf_counter()
        if self._started is None:
            self._started = self._gave
        self._samples += samples
        self._batches += 1

    @property
    def epoch_wait_share(self) -> float | None:
        """Of the present epoch, or of the last: what a start, or a trainer's pause, took is not the feed's fault."""
        if self._gave is None or self._gave <= self._began:
            return None
        return min((self.waited_seconds - self._waited_before) / (self._gave - self._began), 1.0)

    def figures(self) -> dict[str, float]:
        """Samples per second, and the share of the time that was spent waiting for a batch."""
        elapsed = 0.0 if self._started is None else time.perf_counter() - self._started
        counts = {"batches": float(self._batches), "samples": float(self._samples)}
        if not self._batches or elapsed <= 0.0:
            return counts
        return {
            **counts,
            "samples_per_second": self._samples / elapsed,
            "wait_seconds_per_batch": self.waited_seconds / self._batches,
            "wait_share": self.waited_seconds / elapsed,
        }


def when_forgotten(feed: Feed, free: Callable[..., None], *held: Any) -> weakref.finalize[..., Feed]:
    """`free(*held)`, once: when it is called, when the feed is forgotten, or at the interpreter's end."""
    return weakref.finalize(feed, _at_home, os.getpid(), free, held)


def _at_home(home: int, free: Callable[..., None], held: tuple[Any, ...]) -> None:
    if os.getpid() != home:
        return  # a forked process forgets its copy: threads and workers are the trainer's
    if threading.current_thread().name.startswith("fulltilt-"):
        # Forgotten by a thread of ours that happened to collect garbage: it can't wait for its own end.
        threading.Thread(target=free, args=held, name="fulltilt-close").start()
    else:
        free(*held)


def _steps(order: Order, epoch: int, position: int) -> Iterator[Step]:
    """This epoch from its position on, then all that follow: nothing runs dry between two epochs."""
    return chain(order.epoch(epoch, position), chain.from_iterable(order.epoch(later) for later in count(epoch + 1)))
