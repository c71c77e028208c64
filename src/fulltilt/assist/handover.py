"""Tensors for a task, taken from the GPU without making it, or the training loop, wait.

    the step's stream ─► side stream: copy into pinned memory ─► event ─► the worker waits for it, then begins

Pinned memory is torch's own cache of it: a block is used again when the last tensor in it is gone, so a task may keep
or return what it was given. Tensors already on the CPU are handed over as they are. Both come without their graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fulltilt.nested import map_tensors


class Handover:
    """A side stream for each GPU that tensors come from."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._lock = threading.Lock()

    def take(self, value: Any) -> tuple[Any, int, Callable[[], None] | None]:
        """The value with its tensors on the host, the bytes of pinned memory, and what to call before they are read."""
        used: dict[torch.device, torch.cuda.Stream] = {}
        size, as_given = 0, True

        def host(tensor: Tensor) -> Tensor:
            nonlocal size, as_given
            if tensor.requires_grad:
                tensor, as_given = tensor.detach(), False
            if not tensor.is_cuda:
                return tensor
            stream = used.get(tensor.device)
            if stream is None:
                stream = used[tensor.device] = self._stream(tensor.device)
                stream.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(stream):
                copied = torch.empty_like(tensor, device="cpu", pin_memory=True)
                copied.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)  # its memory stays until the copy is made
            size += copied.numel() * copied.element_size()
            return copied

        taken = map_tensors(host, value)
        if not used:
            return value if as_given else taken, 0, None
        arrived = []
        for stream in used.values():
            # "blocking": the worker sleeps until the event, it does not spin on a core that others need.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
            arrived.append(event)

        def ready() -> None:
            for event in arrived:
                event.synchronize()  # without the interpreter lock

        return taken, size, ready

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        with self._lock:
            found = self._streams.get(device)
            if found is None:
                found = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return found
