"""Batches from worker to trainer without /dev/shm: all tensors of a batch in one memory file that has no name.

Torch puts every tensor into /dev/shm, which a container has 64 MB of unless somebody thought of it; a worker that fills
it is killed by SIGBUS. A memfd counts as ordinary memory and goes with the last process that maps it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import torch
import torch.utils.data._utils.worker as torch_worker
from torch import Tensor

from fulltilt.nested import map_parts, map_tensors

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in a parcel."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Parcel:
    """A batch, packed in a worker; it can be sent once."""

    def __init__(self, batch: Any) -> None:
        tensors: list[Tensor] = []
        places: list[_Place] = []
        size = 0

        def place(tensor: Tensor) -> Any:
            nonlocal size
            size = -(-size // _ALIGNMENT) * _ALIGNMENT
            places.append(_Place(size, tuple(tensor.shape), tensor.dtype))
            tensors.append(tensor)
            size += tensor.numel() * tensor.element_size()
            return places[-1]

        self._skeleton = map_tensors(place, batch)
        self._size = max(size, 1)
        self._fd = os.memfd_create("fulltilt-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, self._size)
            memory = mmap.mmap(self._fd, self._size)
            for spot, tensor in zip(places, tensors, strict=True):
                _view(memory, spot).copy_(tensor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _unpack, (reduction.DupFd(self._fd), self._size, self._skeleton)
        finally:
            self.close()


class Packing:
    """A collate function whose batches travel as parcels; the trainer gets them unpacked."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Parcel:
        # In a worker torch's own collate function puts its result into /dev/shm; it tells a worker by this.
        info, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return Parcel(self._collate(samples))
        finally:
            torch_worker._worker_info = info


def _view(memory: mmap.mmap, place: _Place) -> Tensor:
    count = 1
    for side in place.shape:
        count *= side
    if count == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.offset).reshape(place.shape)


def _unpack(handle: Any, size: int, skeleton: Any) -> Any:
    """In the trainer: the batch as it was; its memory is freed with the last of its tensors."""
    fd = handle.detach()
    try:
        memory = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    return map_parts(_Place, lambda place: _view(memory, place), skeleton)
