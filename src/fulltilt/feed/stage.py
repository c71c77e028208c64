"""The way to the device: one copy per batch, one augmentation pass, ahead of the step and on a stream of their own.

    full slot ─ copy ─► tables and pixels on the device ─ augment ─► batch ─ event ─► the step's stream
        └──── free again when the copy is through

Pixels that the GPU has decoded are there already, and are augmented in a pass of their own. On the CPU the same without
streams: the augmentation reads the slot's memory itself.
"""

from __future__ import annotations

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
from fulltilt.feed.gpu_side import Decoded
from fulltilt.feed.reader import Filled
from fulltilt.feed.slot import Slot, Status

_STEPS_IN_FLIGHT = 4
"""The loop may be so many steps ahead of the device. More would only pile up batches in its memory."""
_LABELS_ON_DEVICE = 1 << 28
"""Labels of up to so many bytes are kept on the device and gathered there."""


@dataclass(slots=True, kw_only=True, eq=False)
class Staged:
    """A batch on its way; its tensors may be used once the step's stream waits for `ready`."""

    filled: Filled
    tensors: tuple[Tensor, ...]
    samples: int
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
        self._steps: deque[torch.cuda.Event] = deque()

    def put(self, filled: Filled) -> Staged:
        """Begin to move a slot; nothing is waited for."""
        if self._stream is None:
            staged = self._moved(filled, _whole(filled.slot))
            self._release(filled)
            return staged
        with torch.cuda.stream(self._stream):
            size = filled.slot.start + filled.slot.used
            on_device = self._room(size)
            on_device.copy_(_whole(filled.slot)[:size], non_blocking=True)
            if filled.decoded is not None and filled.decoded.ready is not None:
                self._stream.wait_event(filled.decoded.ready)  # which has read the slot's files, too
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

    def keep_step(self) -> None:
        """All of a step has been launched. Waits for the device when the loop is far ahead of it."""
        if self._stream is None:
            return
        self._steps.append(_event(torch.cuda.current_stream(self._device)))
        if len(self._steps) > _STEPS_IN_FLIGHT:
            self._steps.popleft().synchronize()

    def is_idle(self) -> bool:
        """The device has done all that was launched before the last batch was asked for."""
        return not self._steps or self._steps[-1].query()  # type: ignore[no-untyped-call]

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
        fine, as_file = slot.status[:n] == Status.DONE, slot.length[:n] > 0
        groups = [(np.flatnonzero(fine & ~as_file), None), (np.flatnonzero(fine & as_file), filled.decoded)]
        groups = [group for group in groups if len(group[0])] or groups[:1]
        parts = [self._augmented(slot, memory, positions, decoded) for positions, decoded in groups]
        tensors, order = parts[0], groups[0][0]
        if len(parts) > 1:
            tensors = tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
            order = np.concatenate([positions for positions, _ in groups])
        if not (np.diff(order) > 0).all():
            back = torch.from_numpy(np.argsort(order)).to(self._device)
            tensors = tuple(tensor.index_select(0, back) for tensor in tensors)
        return Staged(filled=filled, tensors=tensors, samples=len(order))

    def _augmented(
        self, slot: Slot, memory: Tensor, positions: npt.NDArray[np.int64], decoded: Decoded | None
    ) -> tuple[Tensor, ...]:
        """Some of a slot's samples, and their labels: those whose pixels lie in it, or those that the GPU decoded."""
        s = slot.samples
        chosen = _chosen(positions, self._device)
        index = memory[16 : 16 + 8 * s].view(torch.int64)[chosen]
        sizes = memory[16 + 24 * s : 16 + 32 * s].view(torch.int32).view(-1, 2)[chosen]
        pixels = memory[slot.start :]
        images = Ragged(
            data=pixels if decoded is None else decoded.data,
            offsets=memory[16 + 8 * s : 16 + 16 * s].view(torch.int64)[chosen] if decoded is None else decoded.offsets,
            sizes=sizes,
            channels=self._channels,
            interleaved=decoded is None or decoded.interleaved,
            smallest=int(slot.size[positions].min()) if len(positions) else 1,
        )
        masks = None
        if self._masks:
            offsets = memory[16 + 16 * s : 16 + 24 * s].view(torch.int64)[chosen]
            masks = Ragged(data=pixels, offsets=offsets, sizes=sizes, channels=1, interleaved=False)
        augmented = self._augment(images, masks, index=index)
        if decoded is not None and self._stream is not None:
            for tensor in (decoded.data, decoded.offsets):
                tensor.record_stream(self._stream)
        tensors = augmented if isinstance(augmented, tuple) else (augmented,)
        if self._labels is None:
            return tensors
        labels = self._labels
        numbers = index if labels.device == index.device else torch.from_numpy(slot.index[positions])
        return (*tensors, labels.index_select(0, numbers).to(self._device, non_blocking=True))


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
