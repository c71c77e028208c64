"""The way to the device: one copy per batch, one augmentation pass, ahead of the step and on a stream of their own.

    full slot ─ copy ─► tables and pixels on the device ─ augment ─► batch ─ event ─► the step's stream
        └──── free again when the copy is through

On the CPU the same without streams: the augmentation reads the slot's memory itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fulltilt.augment import GPUAugmentation, Ragged
from fulltilt.errors import FulltiltError
from fulltilt.feed.reader import Filled
from fulltilt.feed.slot import Slot, Status


@dataclass(slots=True, kw_only=True, eq=False)
class Staged:
    """A batch on its way; its tensors may be used once the step's stream waits for `ready`."""

    filled: Filled
    tensors: tuple[Tensor, ...]
    index: Tensor
    """The samples' numbers, on the CPU."""
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
        self._release = release
        self._epoch = -1
        self._stream = _stream(device) if device.type == "cuda" else None
        self._copying: deque[tuple[torch.cuda.Event, Filled]] = deque()

    def put(self, filled: Filled) -> Staged:
        """Begin to move a slot; nothing is waited for."""
        if self._stream is None:
            staged = self._moved(filled, _whole(filled.slot))
            self._release(filled)
            return staged
        with torch.cuda.stream(self._stream):
            size = filled.slot.start + filled.slot.used
            on_device = torch.empty(size, dtype=torch.uint8, device=self._device)
            on_device.copy_(_whole(filled.slot)[:size], non_blocking=True)
            self._copying.append((_event(self._stream), filled))
            staged = self._moved(filled, on_device)
            staged.ready = _event(self._stream)
        return staged

    def take(self, staged: Staged) -> tuple[Tensor, ...]:
        """The batch, safe to use on the current stream."""
        if staged.ready is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(staged.ready)
            for tensor in staged.tensors:
                tensor.record_stream(current)  # its memory stays until this stream is through with it
        return staged.tensors

    def recycle(self, *, wait: bool = False) -> None:
        """Give back slots whose copy is through."""
        while self._copying and (wait or self._copying[0][0].query()):  # type: ignore[no-untyped-call]
            copied, filled = self._copying.popleft()
            if wait:
                copied.synchronize()
            self._release(filled)

    def _moved(self, filled: Filled, memory: Tensor) -> Staged:
        slot, n = filled.slot, len(filled.step.indices)
        s = slot.samples
        offsets = memory[16 + 8 * s : 16 + 16 * s].view(torch.int64)[:n]
        mask_offsets = memory[16 + 16 * s : 16 + 24 * s].view(torch.int64)[:n]
        sizes = memory[16 + 24 * s : 16 + 32 * s].view(torch.int32).view(-1, 2)[:n]
        fine = np.flatnonzero(slot.status[:n] == Status.DONE)
        index = torch.from_numpy(filled.step.indices)
        if len(fine) < n:
            keep = torch.from_numpy(fine)
            index = index[keep]
            offsets, mask_offsets, sizes = (t[keep.to(t.device)] for t in (offsets, mask_offsets, sizes))
        pixels = memory[slot.start :]
        images = Ragged(
            data=pixels,
            offsets=offsets,
            sizes=sizes,
            channels=self._channels,
            smallest=int(slot.size[fine].min()) if len(fine) else 1,
        )
        masks = None
        if self._masks:
            masks = Ragged(data=pixels, offsets=mask_offsets, sizes=sizes, channels=1, interleaved=False)
        if filled.step.epoch != self._epoch:
            self._epoch = filled.step.epoch
            self._augment.set_epoch(self._epoch)
        augmented = self._augment(images, masks, index=index.to(self._device, non_blocking=True))
        tensors = augmented if isinstance(augmented, tuple) else (augmented,)
        if self._labels is not None:
            tensors = (*tensors, self._labels[index].to(self._device, non_blocking=True))
        return Staged(filled=filled, tensors=tensors, index=index)


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
