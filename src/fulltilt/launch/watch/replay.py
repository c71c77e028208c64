"""The step's limit: the training loader's first batches again and again, already on the device.

The script's own loop runs on; only its loader and its copies cost nothing any more.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from fulltilt.launch.watch.batches import DEEPEST, length
from fulltilt.launch.watch.watch import LoaderSeen
from fulltilt.nested import refilled

BATCHES = 4
"""How many different ones: enough that nothing is learnt by heart at once, few enough to lie on any device."""


class Replay:
    """Batches kept of each loader, and where their tensors were moved to."""

    def __init__(self) -> None:
        self._shelves: dict[int, Shelf] = {}
        self._moved: dict[int, dict[Any, Kept]] = {}
        self.begun = False
        """A kept batch was handed out: from here on steps count."""

    def ready(self, seen: LoaderSeen) -> bool:
        shelf = self._shelves.get(seen.number)
        return seen.role == "train" and shelf is not None and shelf.full

    def epoch(self, seen: LoaderSeen) -> Any:
        """An epoch of kept batches, as long as the loader's own."""
        batches = epoch_length(seen.loader)
        given = 0
        while given < batches:
            self.begun = True
            yield self._shelves[seen.number].next(self)
            given += 1

    def following(self, seen: LoaderSeen, place: int, real: Callable[[], Any]) -> Any:
        """The loader's next batch, `place` of its epoch: its own until enough are kept, then those."""
        if self.ready(seen):
            if place >= _epoch_batches(seen.loader):
                raise StopIteration
            self.begun = True
            return self._shelves[seen.number].next(self)
        shelf = self._shelves.setdefault(seen.number, Shelf())
        try:
            batch = real()
        except StopIteration:
            shelf.closed = bool(shelf.kept)  # a loader with fewer: these are all
            raise
        if seen.role != "eval" and not shelf.full:
            shelf.kept.append(mapped(batch, Kept))
        return batch

    def moved(self, tensor: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The copy on the device that the same call gave before; None where there is none."""
        known = self._moved.get(id(tensor))
        kept = None if known is None else known.get(_call(name, args, kwargs))
        return None if kept is None else kept.give()

    def note(self, tensor: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> None:
        """A tensor of a kept batch was moved to the device."""
        known = self._moved.get(id(tensor))
        if known is not None:
            known[_call(name, args, kwargs)] = Kept(found, given=found)

    def is_ours(self, tensor: Any) -> None:
        self._moved.setdefault(id(tensor), {})


class Kept:
    """A tensor whose values stay: whoever got it may have worked in place."""

    def __init__(self, tensor: Any, *, given: Any = None) -> None:
        self._values = tensor.detach().clone()
        self._given = given
        self._version = None if given is None else _version(given)

    def give(self) -> Any:
        """The same object as long as nobody has written into it."""
        if self._given is None or _version(self._given) != self._version:
            self._given = self._values.clone()
            self._version = _version(self._given)
        return self._given


class Shelf:
    """A loader's kept batches."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.closed = False
        self._next = 0

    @property
    def full(self) -> bool:
        return self.closed or len(self.kept) >= BATCHES

    def next(self, replay: Replay) -> Any:
        kept = self.kept[self._next % len(self.kept)]
        self._next += 1

        def give(one: Kept) -> Any:
            tensor = one.give()
            replay.is_ours(tensor)
            return tensor

        return mapped(kept, give, of=Kept)


def mapped(batch: Any, change: Callable[[Any], Any], *, of: type | None = None) -> Any:
    """The same structure, new containers, each tensor (or each `of`) changed.

    Batches are of the script's own making: what one refers to may refer back to it, and not all of it can be copied.
    Such an object, a second one of what there is one of (a logger) and what lies deep are left as they are.
    """
    known: dict[int, Any] = {}

    def inner(value: Any, depth: int) -> Any:
        if isinstance(value, of) if of is not None else hasattr(value, "element_size"):
            return change(value)
        if depth == DEEPEST:
            return value
        if isinstance(value, Mapping):
            return _or_as_it_is(value, refilled, {key: inner(part, depth + 1) for key, part in value.items()})
        if isinstance(value, list | tuple):
            return _or_as_it_is(value, refilled, [inner(part, depth + 1) for part in value])
        if not hasattr(value, "__dict__") or isinstance(value, type):
            return value
        if id(value) not in known:
            known[id(value)] = other = _or_as_it_is(value, copy.copy)
            if other is not value:
                vars(other).update({name: inner(part, depth + 1) for name, part in vars(value).items()})
        return known[id(value)]

    return inner(batch, 0)


def _or_as_it_is(value: Any, remade: Callable[..., Any], *parts: Any) -> Any:
    try:
        return remade(value, *parts)
    except Exception:  # of whatever its class does when one is made
        return value


def _epoch_batches(loader: Any) -> float:
    """After how many batches its iterator ends. Loaders that iterate in a way of their own keep one iterator for all
    epochs, which never does."""
    from torch.utils.data import DataLoader

    own = getattr(type(loader), "__iter__", DataLoader.__iter__)
    return epoch_length(loader) if own is DataLoader.__iter__ else math.inf


def epoch_length(loader: Any) -> float:
    """Batches of an epoch; endless where a loader can't say, as over an iterable data set."""
    found = length(loader)
    return math.inf if found is None else found


def _version(tensor: Any) -> int:
    return 0 if tensor.is_inference() else int(tensor._version)


def _call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return name, args, tuple(kwargs.items())
