"""Tensors copied out of training's way, into one piece of host memory that is used again each time.

    on a GPU               tensors ─ one pass ─► a copy on the GPU ─ side stream ─► pinned memory; the step goes on
    short of GPU memory    tensors ─ side stream ─► pinned memory; the GPU's next step waits until they are out
    on the CPU             tensors ─► memory

Nothing waits on the host: an event tells the writing thread when the memory is filled. It is laid out as the file is,
so that writing it is one long write.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fulltilt.train.checkpoint.layout import Layout, Place

_KEPT_DEVICE_BYTES: Final = 64 << 20
"""A copy on the GPU up to this size is kept for the next time; a larger one goes back to training in between."""
_PORTABLE: Final = 1  # cudaHostRegisterPortable: pinned for every GPU
_LARGEST_SHARE: Final = 0.5
"""Of the GPU memory that is free: more is not taken for a copy."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Copies that are made, or under way."""

    layout: Layout
    memory: Tensor
    """The file's data: bytes, in the order of the layout."""
    _under_way: list[tuple[torch.cuda.Event, Tensor | None]]
    """What to wait for, and the memory on the GPU that is read until then."""

    def wait(self) -> memoryview:
        """The bytes, when they are there. The interpreter's lock is free meanwhile."""
        while self._under_way:
            event, _ = self._under_way[-1]
            event.synchronize()
            self._under_way.pop()  # and with it the GPU's memory, long before the file is written
        return self.memory.numpy().data

    def tensors(self) -> dict[str, Tensor]:
        """The copies, when they are there, as tensors of that memory."""
        return views(self.layout, self.memory)


class Staging:
    """Copies one state after another; the one before must be written before the next is taken."""

    def __init__(self) -> None:
        self._signature: list[object] = []
        self._layout = Layout(())
        self._memory: _HostMemory | None = None
        self._views: dict[torch.device, dict[str, Tensor]] = {}
        self._copies: dict[torch.device, Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> Staged:
        """Begin to copy. The tensors may be changed by work that is queued, or done, after this."""
        self._plan(tensors)
        devices = list(dict.fromkeys(tensor.device for tensor in tensors.values() if tensor.is_cuda))
        memory = self._host_memory(devices[0] if devices else None)
        host = self._views_of(memory)
        with torch.no_grad():
            elsewhere = [name for name, tensor in tensors.items() if not tensor.is_cuda]
            _copy([host[name] for name in elsewhere], [tensors[name] for name in elsewhere])
            under_way = [self._from_gpu(device, tensors, memory) for device in devices]
        return Staged(self._layout, memory, under_way)

    def release(self) -> None:
        """Give the memory back; only when nothing is under way."""
        self._views, self._copies = {}, {}
        if self._memory is not None:
            self._memory.release()
            self._memory = None

    def _plan(self, tensors: Mapping[str, Tensor]) -> None:
        """The layout: the same from one checkpoint to the next, as a rule."""
        signature: list[object] = [(name, t.dtype, t.shape, t.stride(), t.device) for name, t in tensors.items()]
        if signature != self._signature:
            self._signature, self._layout = signature, Layout.of(tensors)
            self._views, self._copies = {}, {}

    def _host_memory(self, device: torch.device | None) -> Tensor:
        size = self._layout.data_bytes
        memory = self._memory
        if memory is None or len(memory.bytes) < size or (device is not None and memory.device is None):
            self.release()
            self._memory = memory = _HostMemory(size, device)
        return memory.bytes[:size]

    def _views_of(self, memory: Tensor) -> dict[str, Tensor]:
        """Memory as the tensors that lie in it."""
        found = self._views.get(memory.device)
        if found is None:
            found = self._views[memory.device] = views(self._layout, memory)
        return found

    def _from_gpu(
        self, device: torch.device, tensors: Mapping[str, Tensor], memory: Tensor
    ) -> tuple[torch.cuda.Event, Tensor | None]:
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        training = torch.cuda.current_stream(device)
        ours = [place for place in self._layout.places if tensors[place.name].device == device]
        sources = [tensors[place.name] for place in ours]
        copy = self._device_memory(device)
        if copy is not None:
            targets = self._views_of(copy)
            _copy([targets[place.name] for place in ours], sources)
            if self._copies.get(device) is not copy:
                del self._views[device]
        side.wait_stream(training)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            if copy is None:
                host = self._views_of(memory)
                _copy([host[place.name] for place in ours], sources)
            else:
                for begin, end in _runs(ours):
                    memory[begin:end].copy_(copy[begin:end], non_blocking=True)
            done.record(side)
        if copy is None:
            training.wait_event(done)  # the next step must not write into what is being read
        else:
            copy.record_stream(side)
        return done, copy

    def _device_memory(self, device: torch.device) -> Tensor | None:
        """Room for a copy on the GPU; None when memory is short."""
        size = self._layout.data_bytes
        copy = self._copies.get(device)
        if copy is None and size <= _LARGEST_SHARE * _free_bytes(device):
            with contextlib.suppress(torch.OutOfMemoryError):  # free memory may be in pieces that are too small
                copy = torch.empty(size, dtype=torch.uint8, device=device)
                if size <= _KEPT_DEVICE_BYTES:
                    self._copies[device] = copy
        return copy


class _HostMemory:
    """Host memory of exactly the size asked for. Torch's own pinned memory is rounded up to a power of two."""

    def __init__(self, size: int, device: torch.device | None) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8)
        self.device = device
        if device is not None and size and _pin(self.bytes, device):
            # Also when nobody closes: memory that is freed while it is pinned stays pinned for whoever gets it next.
            self.release: Callable[[], object] = weakref.finalize(self, _unpin, self.bytes.data_ptr())
        else:
            self.release = lambda: None


def _pin(memory: Tensor, device: torch.device) -> bool:
    """Whether it could be pinned. If not (a limit on locked memory), copies block the host, and are right as well."""
    with torch.cuda.device(device):  # not the first GPU, which may be another rank's
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) == 0:
            return True
        with contextlib.suppress(RuntimeError):
            torch.zeros((), device=device)  # CUDA reports an error once more at the next launch: here, not in training
    return False


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def views(layout: Layout, memory: Tensor) -> dict[str, Tensor]:
    """Memory as the tensors that lie in it."""
    return {p.name: memory[p.begin : p.end].view(p.dtype).view(p.shape) for p in layout.places}


def _runs(places: list[Place]) -> list[tuple[int, int]]:
    """Places that lie one behind the other, as few pieces: each is one copy."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place.begin:
            runs[-1] = (runs[-1][0], place.end)
        else:
            runs.append((place.begin, place.end))
    return runs


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Many copies by few calls: tensors of one type that lie alike go together, the others one by one."""
    together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if source.device == target.device and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
            pair = together.setdefault(source.dtype, ([], []))
            pair[0].append(target)
            pair[1].append(source)
        else:
            target.copy_(source, non_blocking=True)
    for targets_of_type, sources_of_type in together.values():
        torch._foreach_copy_(targets_of_type, sources_of_type)


def _free_bytes(device: torch.device) -> int:
    """Free on the GPU, or held by torch's allocator and unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
