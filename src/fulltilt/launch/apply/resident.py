"""A TensorDataset's tensors, cut in batches directly, on the device where they fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, TensorDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.weak import WeakTensorKeyDictionary

from fulltilt.feed.tensor_feed import has_room
from fulltilt.launch.apply.places import Places

_TOGETHER = 32
"""Batches whose indices go to the device in one copy."""


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
        there = self._places.device
        new = (tensor for tensor in going if tensor.device != there and not _is_kept(tensor))
        if not has_room(there, sum(tensor.nbytes for tensor in new)):
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


def cuts(loader: Any) -> bool:
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
