"""The feed of tensors that are in memory already: no workers, no copies that are not needed.

Where they fit they are moved to the device once and every batch is gathered there. Otherwise a batch is gathered into
a pinned buffer, one of a ring, and copied on a stream of its own while the step before it runs.

Samples that overlap in memory, such as windows of a recording, are moved as what they are made of; on the device they
are written out one by one, which gathers faster, where that fits as well.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fulltilt.errors import InputError
from fulltilt.feed.base import OrderedFeed, Tensors
from fulltilt.feed.in_flight import InFlight
from fulltilt.feed.order import Order, Step
from fulltilt.feed.structure import Augmenter

_SHARE_OF_FREE_MEMORY = 0.5
"""Data may take so much of what is free on the GPU; the model needs the rest."""

_STEPS_TOGETHER = 64
_BYTES_TOGETHER = {"cuda": 32 << 20, "cpu": 96 << 10}
"""Samples that are gathered at once take so much memory at most; on a CPU they should stay in its cache."""
_ALIGNMENT = 16
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class TensorFeed(OrderedFeed):
    """Tensors in memory."""

    def __init__(
        self,
        tensors: Tensors,
        order: Order,
        *,
        device: torch.device,
        ahead: int,
        augment: Callable[..., Any] | None = None,
        resident: bool | None = None,
    ) -> None:
        super().__init__(order)
        self.augmentation = augment
        self._device, self._ahead, self._augment = device, ahead, Augmenter(augment)
        self.resident = has_room(device, _bytes_to_move(device, tensors)) if resident is None else resident
        """The whole source is on the device."""
        self._tensors = resident_on(device, tensors) if self.resident else tensors
        self._steps: Iterator[Step] = iter(())
        self._ring = None if self.resident else _Ring(self._tensors, order.largest_step, device, ahead + 1)
        self._gatherer = _Gatherer(self._tensors, order, device)
        self._staged: deque[tuple[Step, Tensors, Any]] = deque()

    def inspect_with(self, look: Callable[[Any], None]) -> bool:
        look(self._tensors)
        return True

    def _begin(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self._staged.clear()
        self._gatherer.forget()

    def _next(self) -> tuple[Step, Any]:
        if self._ring is None:
            step = next(self._steps)
            index, batch = self._gatherer.take(step)
            return step, self._augment(batch, step.epoch, index)
        started = time.perf_counter()
        while len(self._staged) <= self._ahead:
            step = next(self._steps)
            self._staged.append((step, *self._ring.put(step)))
        self._clock.waited(time.perf_counter() - started)  # gathered by the loop itself
        step, batch, ready = self._staged.popleft()
        return step, self._augment(self._ring.take(batch, ready), step.epoch, torch.from_numpy(step.indices))


class _Gatherer:
    """Batches of tensors that are on the device. The host's work is done for many steps at a time.

    An epoch's permutation is uploaded once. From it the samples of the next steps are gathered together, and batches
    are parts of that: a small batch costs no launch of its own.
    """

    def __init__(self, tensors: Tensors, order: Order, device: torch.device) -> None:
        self._tensors, self._order, self._device = tensors, order, device
        self._together = steps_together(tensors, order.batch_size, device)
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)
        self._ready: deque[Tensors] = deque()

    def forget(self) -> None:
        """What was gathered ahead is not wanted."""
        self._ready.clear()
        self._epoch = -1

    def take(self, step: Step) -> tuple[Tensor, Tensors]:
        """The samples' numbers and the samples of the step that follows the last one."""
        if not self._ready:
            self._gather(step)
        index, *batch = self._ready.popleft()
        return index, tuple(batch)

    def _at(self, index: Tensor) -> Tensors:
        return (index, *(_rows(tensor, index) for tensor in self._tensors))

    def _gather(self, step: Step) -> None:
        order = self._order
        each = order.batch_size * order.world
        steps = min((order.length - step.start) // each, self._together)
        if steps == 0:  # the epoch's last, which is shared out otherwise
            self._ready.append(self._at(_sent(step.indices, self._device)))
            return
        if step.epoch != self._epoch:
            self._epoch, self._permutation = step.epoch, _sent(step.permutation, self._device)
        if steps == 1:
            first = step.start + order.rank * order.batch_size
            self._ready.append(self._at(self._permutation[first : first + order.batch_size]))
            return
        taken = self._permutation[step.start : step.start + steps * each]
        gathered = self._at(taken.view(steps, order.world, order.batch_size)[:, order.rank].flatten())
        self._ready.extend(zip(*(torch.split(tensor, order.batch_size) for tensor in gathered), strict=True))


def _gatherable(tensor: Tensor) -> Tensor:
    """The same bytes: torch gathers no unsigned numbers of more than 8 bits."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    rows = _gatherable(tensor).index_select(0, index)
    return rows if rows.dtype == tensor.dtype else rows.view(tensor.dtype)


def _sent(indices: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Numbers of samples on the device; the host does not wait for the copy."""
    sent = torch.from_numpy(indices)
    return sent.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else sent.to(device)


def steps_together(tensors: Tensors, batch_size: int, device: torch.device) -> int:
    """How many steps are gathered at once: some dozens of small batches; large ones, and odd sizes, one by one.

    Compiled code wants its inputs to begin at a multiple of 16 bytes, and would copy those that don't.
    """
    sizes = [batch_size * (tensor[:1].numel() * tensor.element_size()) for tensor in tensors]
    if any(size % _ALIGNMENT for size in sizes):
        return 1
    return max(1, min(_STEPS_TOGETHER, _BYTES_TOGETHER.get(device.type, 0) // max(sum(sizes), 1)))


class _Ring:
    """Pinned buffers for batches on their way to a GPU."""

    def __init__(self, tensors: Tensors, batch_size: int, device: torch.device, buffers: int) -> None:
        self._tensors, self._device = tensors, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in_flight = InFlight(device)
        self._free: deque[tuple[Tensors, torch.cuda.Event | None]] = deque(
            (tuple(torch.empty((batch_size, *t.shape[1:]), dtype=t.dtype, pin_memory=True) for t in tensors), None)
            for _ in range(buffers)
        )

    def put(self, step: Step) -> tuple[Tensors, torch.cuda.Event]:
        """Gather a step's samples and begin to copy them."""
        buffers, copied = self._free.popleft()
        if copied is not None:
            copied.synchronize()  # long since through: the ring is longer than what is ahead
        index, n = torch.from_numpy(step.indices), len(step.indices)
        for tensor, buffer in zip(self._tensors, buffers, strict=True):
            torch.index_select(_gatherable(tensor), 0, index, out=_gatherable(buffer[:n]))
        with torch.cuda.stream(self._stream):
            batch = tuple(buffer[:n].to(self._device, non_blocking=True) for buffer in buffers)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._free.append((buffers, event))
        return batch, event

    def take(self, batch: Tensors, ready: torch.cuda.Event) -> Tensors:
        self._in_flight.launched(sum(tensor.nbytes for tensor in batch))
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready)
        for tensor in batch:
            tensor.record_stream(current)
        return batch


def resident_on(device: torch.device, tensors: Tensors) -> Tensors:
    """All of the source, on the device; what is there already stays as it is."""
    write_out = has_room(device, sum(tensor.nbytes for tensor in tensors if tensor.device != device))
    return tuple(tensor if tensor.device == device else _moved(tensor, device, write_out) for tensor in tensors)


def _moved(tensor: Tensor, device: torch.device, write_out: bool) -> Tensor:
    if _span(tensor) >= tensor.numel():  # nothing overlaps
        return tensor.to(device)
    made_of = tensor.as_strided((_span(tensor),), (1,)).to(device)
    same = made_of.as_strided(tensor.shape, tensor.stride(), 0)
    return same.contiguous() if write_out else same


def _span(tensor: Tensor) -> int:
    """Elements from the first to the last, those between included."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def samples_overlap(tensor: Tensor | np.ndarray[Any, Any]) -> bool:
    """Whether samples have memory in common, as windows of one recording do that begin closer than they are long.

    One value that stands for all samples, or for several places of a sample, is no overlap.
    """
    steps = tensor.stride() if isinstance(tensor, Tensor) else tensor.strides
    along = [(n, abs(step)) for n, step in zip(tensor.shape, steps, strict=True)]
    if not (along and along[0][0] > 1 and along[0][1] and all(tensor.shape)):
        return False
    unit = math.gcd(*(step for n, step in along if n > 1))  # one column of several lies as far apart as all of them
    own = min(math.prod(n for n, step in along[1:] if step), _reach(along[1:], unit))
    return bool(len(tensor) * own > _reach(along, unit))


def _reach(along: Sequence[tuple[int, int]], unit: int) -> int:
    """Places from the first to the last."""
    return 1 + sum((n - 1) * step // unit for n, step in along)


def _bytes_to_move(device: torch.device, tensors: Tensors) -> int:
    """That the device needs for all of them, at least; what is there already has its place."""
    return sum(min(_span(one), one.numel()) * one.element_size() for one in tensors if one.device != device)


def has_room(device: torch.device, needed_bytes: int) -> bool:
    """Whether so much of the source may be kept on the device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return bool(needed_bytes <= free * _SHARE_OF_FREE_MEMORY)


def as_tensors(source: Any) -> Tensors:
    """Tensors or arrays, alone or in a tuple, as a tuple of tensors of one length."""
    parts = source if isinstance(source, tuple | list) else (source,)
    try:
        tensors = tuple(part if isinstance(part, Tensor) else torch.as_tensor(part) for part in parts)
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InputError(
            f"{kinds} can't be fed ({error}): a source is ImageFiles, VideoClips, a data set (with a length, or "
            "an IterableDataset), a DataLoader, or tensors or arrays"
        ) from error
    if not all(tensor.dim() for tensor in tensors):
        raise InputError("a tensor of no dimension holds no samples: they lie along the first one")
    return tensors
