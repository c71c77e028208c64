"""The way to the device: one copy per batch, one augmentation pass, ahead of the step and on a stream of their own.

    full slot ─ copy ─► tables and pixels on the device ─ augment ─► batch ─ event ─► the step's stream
        └──── free again when the copy is through

Pixels that the GPU has decoded are there already; the slot's tables say how far from its own pixels. On the CPU the
same without streams: the augmentation reads the slot's memory itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fulltilt.augment import GPUAugmentation, Ragged
from fulltilt.errors import FulltiltError
from fulltilt.feed.images.gpu_side import Decoded
from fulltilt.feed.images.reader import Filled
from fulltilt.feed.images.slot import Slot, Status
from fulltilt.feed.in_flight import InFlight
from fulltilt.feed.step_clock import StepClock

_LABELS_ON_DEVICE = 1 << 28
"""Labels of up to so many bytes are kept on the device and gathered there."""


@dataclass(slots=True, kw_only=True, eq=False)
class Staged:
    """A batch on its way; its tensors may be used once the step's stream waits for `ready`."""

    filled: Filled
    tensors: tuple[Tensor, ...]
    samples: int
    index: npt.NDArray[np.int64]
    """The samples' numbers."""
    ready: torch.cuda.Event | None = None


class CudaPin:
    """Pins slots' memory for CUDA, so that copies from it don't wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: dict[int, int] = {}

    def pin(self, slot: Slot) -> None:
        address = _whole(slot).data_ptr()
        with torch.cuda.device(self._device):
            error = _cudart().cudaHostRegister(address, len(slot.memory), 0)
        if int(error) != 0:
            raise FulltiltError(
                f"CUDA can't pin {len(slot.memory) >> 20} MiB of host memory (error {int(error)}): "
                "is the locked-memory limit (ulimit -l) or memory itself too small? Try a smaller prefetch"
            )
        self._pinned[id(slot)] = address

    def unpin(self, slot: Slot) -> None:
        address = self._pinned.pop(id(slot), None)
        if address is not None:
            with torch.cuda.device(self._device):
                _cudart().cudaHostUnregister(address)


class Stage:
    """Moves filled slots to a device."""

    def __init__(
        self,
        device: torch.device,
        augment: GPUAugmentation,
        *,
        channels: int,
        masks: bool,
        labels: np.ndarray[Any, Any] | None,
        release: Callable[[Filled], None],
    ) -> None:
        self._device, self._augment, self._channels, self._masks = device, augment, channels, masks
        self._labels = None if labels is None else torch.from_numpy(labels)
        if self._labels is not None and self._labels.nbytes <= _LABELS_ON_DEVICE:
            self._labels = self._labels.to(device)
        self._release = release
        self._epoch = -1
        self._stream = _stream(device) if device.type == "cuda" else None
        self._buffer: Tensor | None = None
        """Where slots are copied to, one after the other: all that reads it is on the one stream."""
        self._copying: deque[tuple[torch.cuda.Event, Filled]] = deque()
        self._in_flight = InFlight(device)
        self._batch_bytes = 0
        self.clock = StepClock()

    def put(self, filled: Filled) -> Staged:
        """Begin to move a slot; nothing is waited for."""
        if self._stream is None:
            started = time.perf_counter()
            try:
                memory = _whole(filled.slot)
                if filled.decoded is not None:  # behind the slot's own: a place to reach is for kernels alone
                    filled.slot.offset[filled.decoded.positions] = filled.decoded.offsets + len(filled.slot.data)
                    memory = torch.cat((memory, filled.decoded.pixels))
                staged = self._moved(filled, memory)
            finally:  # also when memory ran out: a slot that is not given back is missing from then on
                self._release(filled)
            self.clock.prepared(time.perf_counter() - started)
            return staged
        with torch.cuda.stream(self._stream):
            size = filled.slot.start + filled.slot.used
            if filled.decoded is not None and filled.decoded.ready is not None:
                self._stream.wait_event(filled.decoded.ready)  # which has read the slot's files, too
            try:
                on_device = self._room(size)
                if filled.decoded is not None:
                    _reach(filled.slot, filled.decoded, on_device[filled.slot.start :])
                    filled.decoded.pixels.record_stream(self._stream)
                on_device.copy_(_whole(filled.slot)[:size], non_blocking=True)
            finally:
                self._copying.append((_event(self._stream), filled))
            staged = self._moved(filled, on_device)
            staged.ready = _event(self._stream)
        return staged

    def take(self, staged: Staged) -> tuple[Tensor, ...]:
        """The batch, safe to use on the current stream."""
        current = None
        if staged.ready is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(staged.ready)
            for tensor in staged.tensors:
                tensor.record_stream(current)  # its memory stays until this stream is through with it
            self._batch_bytes = sum(tensor.nbytes for tensor in staged.tensors)
        self.clock.begin(staged.samples, current)
        return staged.tensors

    def keep_step(self) -> None:
        """All of a step has been launched. Waits for the device when the loop is far ahead of it."""
        self.clock.end(self._in_flight.launched(self._batch_bytes))

    def is_idle(self) -> bool:
        """The device has done all that was launched before the last batch was asked for."""
        return self._in_flight.is_idle

    def recycle(self, *, wait: bool = False) -> None:
        """Give back slots whose copy is through."""
        while self._copying and (wait or self._copying[0][0].query()):  # type: ignore[no-untyped-call]
            copied, filled = self._copying.popleft()
            if wait:
                copied.synchronize()
            self._release(filled)

    def _room(self, size: int) -> Tensor:
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = None  # before its successor is allocated
            self._buffer = torch.empty(int(size * 1.1), dtype=torch.uint8, device=self._device)
        return self._buffer[:size]

    def _moved(self, filled: Filled, memory: Tensor) -> Staged:
        slot, n = filled.slot, len(filled.step.indices)
        if filled.step.epoch != self._epoch:
            self._epoch = filled.step.epoch
            self._augment.set_epoch(self._epoch)
        fine = np.flatnonzero(slot.status[:n] == Status.DONE)
        chosen = _chosen(fine, self._device)
        s = slot.samples
        index = memory[16 : 16 + 8 * s].view(torch.int64)[chosen]
        sizes = memory[16 + 24 * s : 16 + 32 * s].view(torch.int32).view(-1, 2)[chosen]
        pixels = memory[slot.start :]
        images = Ragged(
            data=pixels,
            offsets=memory[16 + 8 * s : 16 + 16 * s].view(torch.int64)[chosen],
            sizes=sizes,
            channels=self._channels,
            smallest=int(slot.size[fine].min()) if len(fine) else 1,
        )
        masks = None
        if self._masks:
            offsets = memory[16 + 16 * s : 16 + 24 * s].view(torch.int64)[chosen]
            masks = Ragged(data=pixels, offsets=offsets, sizes=sizes, channels=1, interleaved=False)
        augmented = self._augment(images, masks, index=index)
        tensors = augmented if isinstance(augmented, tuple) else (augmented,)
        if self._labels is not None:
            numbers = index if self._labels.device == index.device else torch.from_numpy(slot.index[fine])
            labels = self._labels.index_select(0, numbers)
            tensors = (*tensors, labels.to(self._device, non_blocking=True))
        return Staged(filled=filled, tensors=tensors, samples=len(fine), index=slot.index[fine])


def _reach(slot: Slot, decoded: Decoded, pixels: Tensor) -> None:
    """Have the slot's table point from its own pixels on the device to those that the GPU decoded elsewhere."""
    slot.offset[decoded.positions] = decoded.offsets + (decoded.pixels.data_ptr() - pixels.data_ptr())


def _chosen(positions: npt.NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """A slice where it can be: positions have to be copied to the device."""
    if len(positions) == 0:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return slice(first, last + 1)
    return torch.from_numpy(positions).to(device)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _whole(slot: Slot) -> Tensor:
    return torch.from_numpy(np.ndarray((len(slot.memory),), np.uint8, slot.memory))
