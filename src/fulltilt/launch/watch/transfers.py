"""Hooks on tensors: copies to the device, and calls that wait for it, with the user's line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from fulltilt.launch.patching import put
from fulltilt.launch.watch.places import spot
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.timeline import CHECKPOINT, COPY, SYNC

WAITING_METHODS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero")
"""Of a tensor on the GPU: the value must be known on the host."""
PRINTING_METHODS = ("__repr__", "__format__")


def install(watch: Watch) -> None:
    import torch

    built: Any = torch.backends.cuda.is_built
    if not built():  # nothing is ever moved, and nothing waited for
        return
    tensor = torch.Tensor
    for name in ("to", "cuda", "cpu"):
        put(tensor, name, _moving(watch, name, getattr(tensor, name)))
    put(tensor, "copy_", _copying(watch, tensor.copy_))
    for name in WAITING_METHODS:
        put(tensor, name, _waiting(watch, name.strip("_"), getattr(tensor, name)))
    for name in PRINTING_METHODS:
        put(tensor, name, _waiting(watch, "print", getattr(tensor, name), nested=True))
    put(torch.cuda, "synchronize", _blocking(watch, "synchronize", torch.cuda.synchronize))
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        put(owner, "synchronize", _blocking(watch, "synchronize", owner.synchronize))
    if torch.distributed.is_available():
        put(torch.distributed, "barrier", _blocking(watch, "barrier", torch.distributed.barrier))


def _moving(watch: Watch, name: str, moved: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    compiling = torch.compiler.is_dynamo_compiling
    tensor, parameter = torch.Tensor, torch.nn.Parameter

    @functools.wraps(moved)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or get_ident() != watch.thread:
            return moved(self, *args, **kwargs)
        replay = watch.replay
        if replay is not None:
            known = replay.moved(self, name, args, kwargs)
            if known is not None:
                return known
        timeline = watch.timeline
        watch.sources.copies(timeline)
        began_ns = timeline.clock()
        found = moved(self, *args, **kwargs)
        if found is self:
            return found
        now = found.is_cuda
        if self.is_cuda == now or timeline.current in (CHECKPOINT, SYNC):
            return found
        free = kwargs.get("non_blocking", False) or (len(args) > 1 and any(one is True for one in args))
        if now:
            spent = timeline.charge(COPY, began_ns)
            if type(self) is tensor or not isinstance(self, parameter):  # a model that is moved once
                _note_copy(watch, self, spent, bool(free))
            if replay is not None:
                replay.note(self, name, args, kwargs, found)
        elif not free:
            _note_sync(watch, "cpu", timeline.charge(SYNC, began_ns))
        return found

    return move


def _copying(watch: Watch, copied: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    compiling = torch.compiler.is_dynamo_compiling

    @functools.wraps(copied)
    def copy_(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or get_ident() != watch.thread or self.is_cuda == getattr(source, "is_cuda", self.is_cuda):
            return copied(self, source, *args, **kwargs)
        timeline = watch.timeline
        if timeline.current in (CHECKPOINT, SYNC):
            return copied(self, source, *args, **kwargs)
        watch.sources.copies(timeline)
        began_ns = timeline.clock()
        found = copied(self, source, *args, **kwargs)
        free = bool(kwargs.get("non_blocking", args[0] if args else False))
        if self.is_cuda:
            _note_copy(watch, source, timeline.charge(COPY, began_ns), free)
        elif not free:
            _note_sync(watch, "copy_", timeline.charge(SYNC, began_ns))
        return found

    return copy_


def _waiting(watch: Watch, kind: str, waited: Callable[..., Any], *, nested: bool = False) -> Callable[..., Any]:
    """A method that waits where the tensor is the GPU's; `nested` ones call others of them."""
    import torch

    compiling = torch.compiler.is_dynamo_compiling

    @functools.wraps(waited)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or not self.is_cuda or get_ident() != watch.thread:
            return waited(self, *args, **kwargs)
        timeline = watch.timeline
        if timeline.current in (CHECKPOINT, SYNC):
            return waited(self, *args, **kwargs)
        began_ns = timeline.clock()
        if not nested:
            found = waited(self, *args, **kwargs)
            _note_sync(watch, kind, timeline.charge(SYNC, began_ns))
            return found
        timeline.enter(SYNC)
        try:
            return waited(self, *args, **kwargs)
        finally:
            timeline.leave()
            _note_sync(watch, kind, timeline.clock() - began_ns)

    return wait


def _blocking(watch: Watch, kind: str, blocked: Callable[..., Any]) -> Callable[..., Any]:
    """A function that waits for the device, or for other ranks."""

    @functools.wraps(blocked)
    def block(*args: Any, **kwargs: Any) -> Any:
        timeline = watch.timeline
        if get_ident() != watch.thread or timeline.current in (CHECKPOINT, SYNC):
            return blocked(*args, **kwargs)
        began_ns = timeline.clock()
        timeline.enter(SYNC)
        try:
            return blocked(*args, **kwargs)
        finally:
            timeline.leave()
            _note_sync(watch, kind, timeline.clock() - began_ns)

    return block


def _note_sync(watch: Watch, kind: str, spent_ns: int) -> None:
    at = spot(3), kind
    tally = watch.syncs.get(at)
    if tally is None:
        tally = watch.syncs[at] = [0, 0]
    tally[0] += 1
    tally[1] += spent_ns


def _note_copy(watch: Watch, tensor: Any, spent_ns: int, free: bool) -> None:
    at = spot(3), free
    tally = watch.copies.get(at)
    if tally is None:  # the driver is asked whether the memory is pinned, once for each place
        tally = watch.copies[at] = [0, 0, 0, tensor.is_pinned()]
    tally[0] += 1
    tally[1] += spent_ns
    tally[2] += tensor.nbytes
    if watch.span_samples:  # of a batch
        watch.sources.hold(tensor)
