"""Which tensors of a loader's batches go to which device: learnt from the script, which moves the first ones itself.

All others stay where they were, because the script may count on it: lengths, names, what it turns into numpy arrays,
labels that it collects for the end of an epoch.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fulltilt.nested import map_tensors

_LEARNT_FROM = 3
"""Batches that the script moves itself. A first one may be looked at only (its shape printed), and whether it keeps
tensors of theirs is seen when its loop is done with them."""


class Places:
    """Where the script moves each tensor of a loader's batches, by their order within the batch."""

    def __init__(self) -> None:
        self.devices: tuple[Any, ...] | None = None
        """Of each tensor, once it is learnt; None for those that stay."""
        self._left = _LEARNT_FROM
        self._seen: dict[int, int] = {}
        self._tensors: list[Tensor] = []
        self._given: list[list[weakref.ref[Tensor]]] = []
        """Of the batches so far."""
        self._found: dict[int, Any] = {}
        self._stream: Any = None
        self._used: set[int] = set()
        self._elsewhere = False
        """The script moves them on a stream of its own, which would not wait for ours."""

    def hand_out(self, batch: Any) -> Any:
        """The script gets a batch as it is; what it does with the tensors is noted until the next one."""
        if self.devices is not None:
            return batch
        self.conclude()
        if self.devices is None:
            self._tensors = []
            map_tensors(self._tensors.append, batch)
            self._seen = {id(tensor): place for place, tensor in enumerate(self._tensors)}
            self._stream = _current_stream()
            _watch(self)
        return batch

    def conclude(self) -> None:
        """The next batch is asked for."""
        if not self._tensors or self.devices is not None:
            return
        self._left -= 1
        self._given.append([weakref.ref(tensor) for tensor in self._tensors])
        self._tensors, self._seen = [], {}
        if self._left:
            return
        *done, last = self._given
        found = {} if self._elsewhere else self._found
        stays = {place for place in range(len(last)) if place in self._used or _are_kept(done, place)}
        self.devices = tuple(None if place in stays else found.get(place) for place in range(len(last)))
        self._given, self._stream = [], None
        _unwatch(self)

    def moved(self, tensor: Tensor, device: Any) -> None:
        place = self._seen.get(id(tensor))
        if place is not None:
            self._found[place] = device
            now = _current_stream()
            self._elsewhere |= now is not None and self._stream is not None and now != self._stream

    def used(self, tensor: Any) -> None:
        """The script works with what lies on the host, too: it may need it there."""
        place = self._seen.get(id(tensor))
        if place is not None:
            self._used.add(place)

    @property
    def device(self) -> Any:
        """The one that batches go to; None where they stay, or go to several."""
        devices = {device for device in self.devices or () if device is not None}
        return devices.pop() if len(devices) == 1 else None


def _are_kept(batches: list[list[weakref.ref[Tensor]]], place: int) -> bool:
    """The script still has that tensor of every batch that its loop is done with: it collects them, as they are."""
    tensors = [batch[place] for batch in batches if place < len(batch)]
    return bool(tensors) and all(tensor() is not None for tensor in tensors)


_watching: set[Places] = set()


_HOST = ("numpy", "__array__", "__getitem__", "__iter__", "__eq__", "__ne__")
"""What is done with a tensor on the host, and fails, or ends elsewhere, with one on the device."""


def _watch(places: Places) -> None:
    if not _watching:
        for name in ("to", "cuda", *_HOST):
            own, original = name in vars(Tensor), getattr(Tensor, name)
            noticing = (_noticing_use if name in _HOST else _noticing)(original)
            noticing.__fulltilt_original__ = original if own else None  # type: ignore[attr-defined]
            setattr(Tensor, name, noticing)
    _watching.add(places)


def _unwatch(places: Places) -> None:
    _watching.discard(places)
    if _watching:
        return
    for name in ("to", "cuda", *_HOST):
        ours = getattr(Tensor, name)
        if hasattr(ours, "__fulltilt_original__"):
            original = ours.__fulltilt_original__
            delattr(Tensor, name) if original is None else setattr(Tensor, name, original)


def _noticing_use(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def use(*args: Any, **kwargs: Any) -> Any:
        for places in tuple(_watching):
            for one in args[:2]:
                places.used(one)
        return original(*args, **kwargs)

    return use


def _noticing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def move(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        moved = original(self, *args, **kwargs)
        if moved.device != self.device:
            for places in tuple(_watching):
                places.moved(self, moved.device)
        return moved

    return move


def _current_stream() -> Any:
    import torch

    cuda: Any = torch.cuda
    return cuda.current_stream() if cuda.is_available() and cuda.is_initialized() else None
