"""Batches on their way from a script's loader to its loop.

    ahead      the loader's own iterator ─► a thread that fetches and pins ─► the device, on a stream of its own
    resident   a TensorDataset's tensors, cut in batches directly, on the device where they fit

Which tensors of a batch go to which device is learnt from the script: it moves those of the first batches itself. All
others stay where they were, because the script may count on it (lengths, names, what it turns into numpy arrays, labels
that it collects for the end of an epoch).
Iterators are torch's by kind, so that whoever watches `__next__` sees these, too.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, TensorDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.weak import WeakTensorKeyDictionary

from fulltilt.feed.mover import Mover
from fulltilt.feed.structure import map_parts, map_tensors
from fulltilt.feed.tensor_feed import fits
from fulltilt.launch.watch.batches import length

Note = Callable[[str], None]

_LEARNT_FROM = 3
"""Batches that the script moves itself. A first one may be looked at only (its shape printed), and whether it keeps
tensors of theirs is seen when its loop is done with them."""
_DEPTH, _AHEAD = 2, 1
_TOGETHER = 32
"""Batches whose indices go to the device in one copy."""


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
        if self._resident and _cuts(loader):
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


class LentIterator(_BaseDataLoaderIter):
    """One epoch of an iterator whose workers live on: by its own life it is seen whether a loop still goes."""

    def __init__(self, inner: Any) -> None:
        # Not torch's own beginning, which would draw a seed: the inner iterator has drawn it.
        self.__dict__.update(inner.__dict__)
        self._inner = inner
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
        return _following(self._inner)


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
                return places.hand_out(_following(self._inner))
            self._mover = Mover(places.device, depth=_DEPTH, ahead=_AHEAD)
            self._mover.start(_marked(self._inner, places.devices or ()))
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


def _marked(inner: Any, devices: tuple[Any, ...]) -> Iterator[Any]:
    """The inner iterator's batches, their tensors that stay hidden; batches of another make stay as a whole."""
    while True:
        try:
            batch = _following(inner)
        except StopIteration:
            return
        tensors: list[Tensor] = []
        map_tensors(tensors.append, batch)
        if len(tensors) != len(devices):
            yield map_tensors(_Stays, batch)
            continue
        order = iter(devices)
        yield map_tensors(lambda tensor: _Stays(tensor) if next(order) is None else tensor, batch)  # noqa: B023


def _following(inner: Any) -> Any:
    """An iterator's next batch, past those who watch `__next__`: the loop's wait is the outer iterator's."""
    if inner._sampler_iter is None:
        inner._reset()
    batch = inner._next_data()
    inner._num_yielded += 1
    return batch


class ResidentIterator(_BaseDataLoaderIter):
    """Batches of tensors in memory, in the order of the loader's own sampler."""

    def __init__(self, loader: Any, places: Places) -> None:
        super().__init__(loader)  # draws what torch's own would draw
        self._places = places
        self._tensors, self._rows = tensors_of(loader.dataset) or ((), None)
        self._sources: list[Tensor] | None = None
        self._versions: list[int] = []
        self._ready: Iterator[Any] = iter(())
        known = type(loader.batch_sampler) is BatchSampler
        # Others may draw as they go: they are asked for one batch at a time.
        self._at_once = known and type(loader.batch_sampler.sampler) in (RandomSampler, SequentialSampler)

    def _next_data(self) -> Any:
        places = self._places
        places.conclude()
        if places.device is None:
            return places.hand_out(self._cut(list(self._tensors), self._index(next(self._sampler_iter))))
        versions = [*map(_version, self._tensors)]
        if self._sources is None or versions != self._versions:  # the script may write in its data as it goes
            self._sources, self._versions = self._placed(), versions
        index = next(self._ready, None)
        if index is None:
            self._ready = self._sent(places.device)
            index = next(self._ready)
        return self._cut(self._sources, index)

    def _placed(self) -> list[Tensor]:
        """The tensors that the script moves, moved once; all stay where there is no room."""
        devices = self._places.devices or ()
        going = tuple(tensor for tensor, device in zip(self._tensors, devices, strict=True) if device is not None)
        if not fits(tuple(tensor for tensor in going if not _is_kept(tensor)), self._places.device):
            return list(self._tensors)
        return [
            tensor if device is None else _kept(tensor, device)
            for tensor, device in zip(self._tensors, devices, strict=True)
        ]

    def _sent(self, device: Any) -> Iterator[Any]:
        """The next batches' indices, on the host and on the device."""
        import torch

        lists = list(islice(self._sampler_iter, _TOGETHER if self._at_once else 1))
        if not lists:
            raise StopIteration
        host = [self._index(indices) for indices in lists]
        if not any(source.device == device for source in self._sources or ()):
            return iter([(index, None) for index in host])
        together = torch.cat(host)
        sent = together.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else together.to(device)
        return iter(list(zip(host, torch.split(sent, [len(index) for index in host]), strict=True)))

    def _index(self, indices: Any) -> Tensor:
        import torch

        index = torch.as_tensor(indices, dtype=torch.int64)
        return index if self._rows is None else self._rows[index]

    def _cut(self, sources: list[Tensor], index: Any) -> list[Tensor]:
        here, there = index if isinstance(index, tuple) else (index, None)
        return [
            source.index_select(0, here if there is None or source.device != there.device else there)
            for source in sources
        ]


def tensors_of(dataset: Any) -> tuple[tuple[Tensor, ...], Tensor | None] | None:
    """The tensors of a TensorDataset or of a part of one, and which rows; None for any other data set."""
    import torch

    rows: Tensor | None = None
    while type(dataset) is Subset:
        inner = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        rows = inner if rows is None else inner[rows]
        dataset = dataset.dataset
    return (dataset.tensors, rows) if type(dataset) is TensorDataset else None


def _cuts(loader: Any) -> bool:
    """Whether a loader's batches are rows of tensors, and nothing else happens to them."""
    from torch.utils.data import DataLoader

    plain = loader.collate_fn is default_collate and loader.batch_sampler is not None
    return plain and type(loader) is DataLoader and tensors_of(loader.dataset) is not None


_copies: Any = WeakTensorKeyDictionary()
"""Of tensors, for as long as the script has them: by device, the version that was copied, and the copy."""


def _kept(tensor: Tensor, device: Any) -> Tensor:
    """A tensor on the device, once for all loaders, and once more where it was written in since."""
    if tensor.device == device:
        return tensor
    copies = _copies.setdefault(tensor, {})
    if device not in copies or copies[device][0] != _version(tensor):
        copies[device] = _version(tensor), tensor.to(device)
    copy: Tensor = copies[device][1]
    return copy


def _is_kept(tensor: Tensor) -> bool:
    return tensor in _copies


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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


def _nobody() -> Any:
    return None
