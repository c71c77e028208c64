"""From steps to filled slots: keeps the decoders busy as far ahead as there are slots, and gives slots out in order.

steps ─► free slot ─► pool ─► full slot ─► take() ─► … ─► give_back() ─► free slot
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fulltilt.decode import probe
from fulltilt.errors import FulltiltError, InputError
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.kept import Kept
from fulltilt.feed.images.pool import Pool
from fulltilt.feed.images.slot import Slot, Status
from fulltilt.feed.order import Step
from fulltilt.feed.waiting import Waiting
from fulltilt.machine.memory import read_memory

if TYPE_CHECKING:
    from fulltilt.feed.images.gpu_side import Decoded

_PROBED = 64
_SPARE = 1.25
"""A slot begins with room for so many times the batch's expected pixels."""


@dataclass(slots=True, kw_only=True, eq=False)
class Filled:
    """A slot with a step's samples in it."""

    slot: Slot
    number: int
    step: Step
    failures: dict[int, str] = field(default_factory=dict)
    """Position → what went wrong."""
    decoded: Decoded | None = None
    """What the GPU has made of the slot's files."""
    full: bool = False
    dropped: bool = False
    """Nobody wants it any more."""


class Pin(Protocol):
    """What has to know of a slot's memory while it is mapped: CUDA, which pins it."""

    def pin(self, slot: Slot) -> None: ...
    def unpin(self, slot: Slot) -> None: ...


class Side(Protocol):
    """Who decodes a slot's files before it is given out: the GPU."""

    def submit(self, filled: Filled) -> None: ...
    def close(self) -> None: ...


class Reader:
    """The ring of slots of one source."""

    def __init__(
        self,
        catalog: Catalog,
        count: int,
        *,
        batch_size: int,
        slots: int,
        workers: int,
        most_workers: int,
        quality: str,
        channels: int,
        in_order: bool,
        cache: str | None = None,
        kept: Kept | None = None,
        cache_to_come: str | None = None,
        pin: Pin | None = None,
    ) -> None:
        self._catalog, self._kept, self._in_order, self._pin = catalog, kept, in_order, pin
        self._bytes_per_pixel = channels + catalog.has_masks
        self.slots: list[Slot] = []
        self._filling: dict[int, Filled] = {}
        self._queue: deque[Filled] = deque()
        self._steps: Iterator[Step] = iter(())
        self._begun: Step | None = None
        """The step that a slot was given last."""
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self.side: Side | None = None
        self.share = 0.0
        """The part of each batch from now on that is left to the side."""
        try:
            room = int(_expected_bytes(catalog, count, channels) * batch_size * _SPARE)
            for _ in range(fitting_slots(slots, room, read_memory().available_bytes)):
                self.slots.append(Slot.create(batch_size, room))
                if pin is not None:
                    pin.pin(self.slots[-1])
            self._free = deque(range(len(self.slots)))
            self._rounds = [0] * len(self.slots)
            self.pool = Pool(
                catalog,
                self.slots,
                workers=workers,
                most=most_workers,
                quality=quality,
                channels=channels,
                cache=cache,
                kept=kept,
                cache_to_come=cache_to_come,
                done=self._slot_done,
                broken=self.broken,
            )
        except BaseException:
            self._free_memory()
            raise

    def start(self, steps: Iterator[Step]) -> None:
        """Begin with these steps; what is under way for others is dropped."""
        with self._changed:
            self._steps = steps
            for filled in self._queue:
                filled.dropped = True
                if filled.full:
                    self._free.append(filled.number)
            self._queue.clear()
        self.fill()

    def fill(self) -> None:
        """Give every free slot the next step."""
        with self._changed:
            while self._free and (step := next(self._steps, None)) is not None:
                number = self._free.popleft()
                filled = Filled(slot=self.slots[number], number=number, step=step)
                self._filling[number] = filled
                self._queue.append(filled)
                self._begun = step
                count = len(step.indices)
                filled.slot.begin(step.indices, files=0 if self.side is None else round(self.share * count))
                # Small parts even out slow files; a few per process and batch are enough.
                part = max(1, min(8, count // (2 * self.pool.wanted)))
                self._ask(number, [(first, min(part, count - first)) for first in range(0, count, part)])

    def take(self, *, wait: bool = True) -> Filled | None:
        """The next full slot (any full one of the epoch, where order doesn't matter); None: it is not to be waited for.

        There may be nothing to wait for yet but slots of an epoch that was broken off, which are filled anew then.
        """
        waiting = Waiting(self.pool.held_up)
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                for filled in self._eligible():
                    if filled.full:
                        self._queue.remove(filled)
                        if not self._in_order:
                            filled.step = self._out_of_turn(filled.step)
                        return filled
                if not wait:
                    return None
                if not self._changed.wait(waiting.seconds):
                    waiting.say()

    def give_back(self, filled: Filled) -> None:
        """The slot's memory has been read: it can be filled again."""
        with self._changed:
            self._free.append(filled.number)
        self.fill()

    def close(self) -> None:
        """Stop the decoders and free the slots."""
        with self._changed:
            self._steps = iter(())  # slots that the side still gives back are not to be filled again
        self.pool.close()
        if self.side is not None:
            self.side.close()
        self._free_memory()

    def _free_memory(self) -> None:
        for slot in self.slots:
            if self._pin is not None:
                self._pin.unpin(slot)
            slot.close()
        self._catalog.close()
        if self._kept is not None:
            self._kept.close()

    def _eligible(self) -> list[Filled]:
        """Slots that may be taken, full or not: an epoch is taken whole before the next one is begun."""
        if self._in_order:
            return list(self._queue)[:1]
        return [filled for filled in self._queue if filled.step.epoch == self._queue[0].step.epoch]

    def _out_of_turn(self, step: Step) -> Step:
        """A step as it counts when it is taken now: the place is before all that is not taken yet, so none is lost."""
        begun = self._begun
        assert begun is not None
        if self._queue and self._queue[0].step.epoch == step.epoch:
            return replace(step, position=self._queue[0].step.start, last=False)
        if begun.epoch == step.epoch and not begun.last:
            return replace(step, position=begun.position, last=False)
        return replace(step, last=True)

    def _ask(self, number: int, parts: list[tuple[int, int]]) -> None:
        self._rounds[number] += 1
        self.pool.fill(number, self._rounds[number], parts)

    def _slot_done(self, number: int, failures: dict[int, str]) -> None:
        """Called from the pool's thread: every sample of a slot has been dealt with, one way or another."""
        with self._changed:
            filled = self._filling[number]
            filled.failures.update(failures)
            status = filled.slot.status[: len(filled.step.indices)]
            short = np.flatnonzero(status == Status.NO_ROOM)
            if len(short) and not filled.dropped:
                pixels = filled.slot.size[short].astype(np.int64).prod(1).sum()
                status[short] = Status.WAITING
                self._grow(filled.slot, filled.slot.used + int(pixels) * self._bytes_per_pixel + 64 * len(short))
                self._ask(number, [(int(position), 1) for position in short])
                return
            del self._filling[number]
        if self.side is not None and filled.slot.length[: len(filled.step.indices)].any():
            self.side.submit(filled)
        else:
            self.finished(filled)

    def finished(self, filled: Filled) -> None:
        """A slot holds all that it ever will: it can be taken. Called from the pool's thread or the side's."""
        with self._changed:
            filled.full = True
            if filled.dropped:
                self._free.append(filled.number)
            self._changed.notify_all()
        if filled.dropped:
            self.fill()

    def broken(self, error: BaseException) -> None:
        """Nothing more will come: whoever takes, hears why."""
        with self._changed:
            self._error = error if isinstance(error, FulltiltError) else FulltiltError(f"the feed stopped: {error!r}")
            self._changed.notify_all()

    def _grow(self, slot: Slot, capacity: int) -> None:
        if self._pin is not None:
            self._pin.unpin(slot)
        slot.grow(max(capacity, int(slot.capacity * 1.25)))
        if self._pin is not None:
            self._pin.pin(slot)


def fitting_slots(wanted: int, slot_bytes: int, available_bytes: int) -> int:
    """As many slots as wanted, or as half of the free memory holds; one to read and one to fill at the least."""
    fitting = min(wanted, available_bytes // 2 // max(slot_bytes, 1))
    if fitting >= 2:
        return int(fitting)
    if 2 * slot_bytes > available_bytes * 0.9:
        raise InputError(
            f"two batches of decoded images take about {2 * slot_bytes / 2**30:.1f} GiB, and "
            f"{available_bytes / 2**30:.1f} GiB of memory are free: lower batch_size"
        )
    return 2


def _expected_bytes(catalog: Catalog, count: int, channels: int) -> float:
    """Bytes that a decoded sample takes, on the average of some headers."""
    sizes = []
    for number in np.unique(np.linspace(0, count - 1, _PROBED).astype(int)):
        try:
            with open(catalog.image(int(number)), "rb") as file:
                header = probe(file.read())
        except (InputError, OSError):
            continue  # it will be named when its turn comes
        sizes.append(header.height * header.width * (channels + catalog.has_masks) + 64)
    return float(np.mean(sizes)) if sizes else 1 << 20
