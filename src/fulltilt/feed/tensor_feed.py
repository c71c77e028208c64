"""The feed of tensors that are in memory already: no workers, no copies that are not needed.

Where they fit they are moved to the device once and every batch is gathered there. Otherwise a batch is gathered into
a pinned buffer, one of a ring, and copied on a stream of its own while the step before it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fulltilt.feed.base import OrderedFeed, Tensors
from fulltilt.feed.order import Order, Step
from fulltilt.feed.structure import Augmenter

_SHARE_OF_FREE_MEMORY = 0.5
"""Data may take so much of what is free on the GPU; the model needs the rest."""


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
        self.resident = fits(tensors, device) if resident is None else resident
        """The whole source is on the device."""
        self._tensors = tuple(tensor.to(device) for tensor in tensors) if self.resident else tensors
        self._steps: Iterator[Step] = iter(())
        self._ring = None if self.resident else _Ring(self._tensors, order.batch_size, device, ahead + 1)
        self._staged: deque[tuple[Step, Tensors, Any]] = deque()

    def _begin(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self._staged.clear()

    def _next(self) -> tuple[Step, Any]:
        if self._ring is None:
            step = next(self._steps)
            index = torch.from_numpy(step.indices).to(self._device, non_blocking=True)
            batch = tuple(tensor.index_select(0, index) for tensor in self._tensors)
            return step, self._augment(batch, step.epoch, index)
        while len(self._staged) <= self._ahead:
            step = next(self._steps)
            self._staged.append((step, *self._ring.put(step)))
        step, batch, ready = self._staged.popleft()
        return step, self._augment(self._ring.take(batch, ready), step.epoch, torch.from_numpy(step.indices))


class _Ring:
    """Pinned buffers for batches on their way to a GPU."""

    def __init__(self, tensors: Tensors, batch_size: int, device: torch.device, buffers: int) -> None:
        self._tensors, self._device = tensors, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
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
            torch.index_select(tensor, 0, index, out=buffer[:n])
        with torch.cuda.stream(self._stream):
            batch = tuple(buffer[:n].to(self._device, non_blocking=True) for buffer in buffers)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._free.append((buffers, event))
        return batch, event

    def take(self, batch: Tensors, ready: torch.cuda.Event) -> Tensors:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready)
        for tensor in batch:
            tensor.record_stream(current)
        return batch


def fits(tensors: Tensors, device: torch.device) -> bool:
    """Whether all of the source may be kept on the device."""
    if device.type != "cuda":
        return True
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.device != device)
    free, _ = torch.cuda.mem_get_info(device)
    return bool(needed <= free * _SHARE_OF_FREE_MEMORY)


def as_tensors(source: Any) -> Tensors:
    """Tensors or arrays, alone or in a tuple, as a tuple of tensors of one length."""
    parts = source if isinstance(source, tuple | list) else (source,)
    return tuple(part if isinstance(part, Tensor) else torch.as_tensor(part) for part in parts)
