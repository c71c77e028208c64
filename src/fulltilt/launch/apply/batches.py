"""Batches on their way from a script's loader to its loop.

    ahead      the loader's own iterator ─► a thread that fetches and pins ─► the device, on a stream of its own
    resident   a TensorDataset's tensors, cut in batches directly (resident.py)

Which tensors go to which device is learnt from the script (places.py). Iterators are torch's by kind, so that whoever
watches `__next__` sees these, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fulltilt.feed.mover import Mover
from fulltilt.launch.apply.places import Places
from fulltilt.launch.apply.resident import ResidentIterator, cuts
from fulltilt.launch.watch.batches import length
from fulltilt.nested import map_parts, map_tensors

Note = Callable[[str], None]

_DEPTH, _AHEAD = 2, 1


class Batches:
    """Gives every loader of the script the iterator that fits it."""

    def __init__(self, *, ahead: bool, resident: bool, note: Note) -> None:
        self._ahead, self._resident, self._note = ahead, resident, note
        self._places: weakref.WeakKeyDictionary[Any, Places] = weakref.WeakKeyDictionary()
        self._running: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()

    def leave(self, loader: Any) -> None:
        """A loop over the loader begins: the one before it, where it was broken off, lets go of the workers."""
        running = self._running.pop(loader, _nobody)()
        if running is not None:
            running.stop()

    def iterator(self, loader: Any, original: Callable[..., Any], *, beside: bool = False) -> Any:
        """`beside`: another loop over it goes on, with workers of its own; `original` makes new ones for this one."""
        places = self._places.setdefault(loader, Places())
        if self._resident and cuts(loader):
            return ResidentIterator(loader, places)
        inner = original(loader)
        if not self._ahead:
            return inner
        if loader.num_workers == 0:
            # Fetched in a thread, samples would draw their random numbers between those of the training.
            self._note("ahead: left out where the loader has no workers")
            return inner
        iterator = AheadIterator(inner, places)
        if not beside:
            self._running[loader] = weakref.ref(iterator)
        return iterator


class LentIterator(_BaseDataLoaderIter):
    """One epoch of an iterator whose workers live on: by its own life it is seen whether a loop still goes."""

    def __init__(self, inner: Any) -> None:
        # Not torch's own beginning, which would draw a seed: the inner iterator has drawn it.
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self.epochs: Any = None
        """Knows where the next epoch begins, whose batches the workers make already."""
        self.ended = False
        """Its workers may be at another epoch by now."""

    @property
    def goes_on(self) -> bool:
        """It has batches to give. A loop that counts them does not ask for one more at the end."""
        count = length(self)
        return not self.ended and (count is None or self._num_yielded < count)

    def _next_data(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            return self._following()
        except StopIteration:
            self.ended = True
            raise

    def _following(self) -> Any:
        return _following(self._inner, self.epochs)


class AheadIterator(LentIterator):
    """A loader's iterator, run by a thread, its batches on the device before they are asked for."""

    def __init__(self, inner: Any, places: Places) -> None:
        super().__init__(inner)
        self._places = places
        self._mover: Mover | None = None
        self._end: Callable[[], Any] = _nobody

    def _following(self) -> Any:
        places = self._places
        if self._mover is None:
            places.conclude()
            if places.device is None:
                return places.hand_out(_following(self._inner, self.epochs))
            self._mover = Mover(places.device, depth=_DEPTH, ahead=_AHEAD)
            self._mover.start(_marked(self._inner, self.epochs, places.devices or ()))
            self._end = weakref.finalize(self, self._mover.stop)
        return map_parts(_Stays, lambda part: part.tensor, self._mover.next())

    def stop(self) -> None:
        """Let go of the inner iterator."""
        self._end()


class _Stays:
    """A tensor that the mover is to leave where it is."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _marked(inner: Any, epochs: Any, devices: tuple[Any, ...]) -> Iterator[Any]:
    """The inner iterator's batches, their tensors that stay hidden; batches of another make stay as a whole."""
    while True:
        try:
            batch = _following(inner, epochs)
        except StopIteration:
            return
        tensors: list[Tensor] = []
        map_tensors(tensors.append, batch)
        if len(tensors) != len(devices):
            yield map_tensors(_Stays, batch)
            continue
        order = iter(devices)
        yield map_tensors(lambda tensor: _Stays(tensor) if next(order) is None else tensor, batch)  # noqa: B023


def _following(inner: Any, epochs: Any) -> Any:
    """An iterator's next batch, past those who watch `__next__`: the loop's wait is the outer iterator's."""
    if inner._sampler_iter is None:
        inner._reset()
    if epochs is not None and epochs.is_over(inner):
        raise StopIteration
    try:
        batch = inner._next_data()
    except BaseException:  # Ctrl-C may come when indices are taken and not yet given to a worker
        if epochs is not None:
            epochs.forget()
        raise
    inner._num_yielded += 1
    return batch


def _nobody() -> Any:
    return None
