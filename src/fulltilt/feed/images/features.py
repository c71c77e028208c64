"""Numbers that go with each image file: computed by threads when its batch is begun, kept on disk for the next run.

    steps ─► what is not known yet ─► threads: read, decode, extract ─┬─► the table ─► rows of a batch
                                                                      └─► a file, when an epoch ends
A row is used again when its file bears the stamp that it had when the row was made. The file's name is a hash of what
extracts: its code and all that it was given. What can't be hashed is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fulltilt.cache.keys import name_of, read_steadily, stamp_of
from fulltilt.decode import decode
from fulltilt.errors import DecodeError, FulltiltError, InputError, SampleError
from fulltilt.feed.order import Indices, Step
from fulltilt.machine.files import write_whole
from fulltilt.machine.one_core import compute_with_one_core

log = logging.getLogger("fulltilt.feed")

Extract = Callable[[torch.Tensor], Any]
"""From an image, uint8 (C, H, W), to its numbers: a tensor or array of one dimension, always of one length."""
Rows = npt.NDArray[np.float32]

_VERSION = b"1"
_FORMAT_ERRORS = (OSError, ValueError, EOFError, KeyError, IndexError)
"""What a file that is no table, or another kind of array, makes numpy raise."""


class FeatureTable:
    """Rows of numbers, one for each file."""

    def __init__(self, paths: list[str], extract: Extract, *, channels: int, folder: Path | None, workers: int) -> None:
        """
        Args:
            folder: where rows are kept from one run to the next; None keeps none.
        """
        if not callable(extract):
            raise InputError(f"features is {extract!r}; it is called with an image (C, H, W) and gives its numbers")
        self._paths, self._extract, self._channels = paths, extract, channels
        self._digest = digest_of(extract, channels)
        if folder is not None and self._digest is None:
            log.info("features are computed anew in each run: %r can't be told from another", extract)
        keeps = folder is not None and self._digest is not None
        self.file = folder / f"{(self._digest or b'').hex()}.npy" if folder is not None and keeps else None
        self._kept = self._load()
        self._rows: Rows | None = None
        self._known = np.zeros(len(paths), bool)
        self._stamps = np.zeros((len(paths), 4), np.uint64)
        self._under_way: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, "fulltilt-features", initializer=compute_with_one_core)
        self._fresh = 0
        self.computed = 0
        """Rows that were made in this run."""

    def following(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The same steps; the rows of each are begun when it is."""
        for step in steps:
            self.begin(step.indices)
            yield step

    def begin(self, indices: Indices) -> None:
        """Have rows made that are not known."""
        with self._lock:
            for index in map(int, indices):
                if not self._known[index] and index not in self._under_way:
                    self._under_way[index] = self._pool.submit(self._make, index)

    def rows(self, indices: Indices) -> torch.Tensor:
        """The rows of these samples, (N, D); waits for those that are being made."""
        self.begin(indices)
        for index in map(int, indices):
            future = self._under_way.get(index)
            if future is not None:
                future.result()
        with self._lock:
            for index in map(int, indices):
                self._under_way.pop(index, None)
        missing = [int(index) for index in indices if not self._known[index]]
        if missing:
            raise SampleError(f"{self._paths[missing[0]]}: it could be read once, but not again, for its features")
        if self._rows is None:  # none was asked for, ever
            return torch.empty(0, 0)
        return torch.from_numpy(self._rows[indices])

    def save(self) -> None:
        """Write what is new, together with what others have written meanwhile."""
        if self.file is None or self._rows is None or not self._fresh:
            return
        with self._lock:
            self._fresh = 0
            known = np.flatnonzero(self._known)
            own = {self._name(int(i)): (self._stamps[i].copy(), self._rows[i].copy()) for i in known}
        merged = self._load() | own
        table = np.zeros(len(merged), _row_type(self._rows.shape[1]))
        for line, (name, (stamp, values)) in zip(table, merged.items(), strict=True):
            line["name"], line["stamp"], line["values"] = np.void(name), stamp, values
        content = io.BytesIO()
        np.save(content, table, allow_pickle=False)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, content.getvalue())
        except (OSError, FulltiltError) as error:
            log.warning("features are not kept: %s", error)
            self.file = None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.save()

    # --- on a thread -------------------------------------------------------------------------------------------------

    def _make(self, index: int) -> None:
        path = self._paths[index]
        try:
            kept = self._kept.get(self._name(index))
            if kept is not None and tuple(kept[0].tolist()) == stamp_of(os.stat(path)):
                self._put(index, kept[0], kept[1], fresh=False)
                return
            data, stamp = read_steadily(path)
            pixels = decode(data, channels=self._channels)
        except (OSError, DecodeError):
            return  # the decoders find that, too, and say so in the batch's turn; this row is not asked for
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        try:
            values = np.asarray(self._extract(image), np.float32)
        except Exception as error:
            raise SampleError(f"{path}: features: {type(error).__name__}: {error}") from error
        if values.ndim != 1 or not values.size:
            raise InputError(f"features of {path} have the shape {values.shape}; they must be a row of numbers, (D,)")
        self._put(index, np.array(stamp, np.uint64), values, fresh=True)

    def _put(self, index: int, stamp: npt.NDArray[np.uint64], values: Rows, *, fresh: bool) -> None:
        with self._lock:
            if self._rows is None:
                self._rows = np.full((len(self._paths), len(values)), np.nan, np.float32)
            if len(values) != self._rows.shape[1]:
                raise InputError(
                    f"{self._paths[index]} has {len(values)} features, others have {self._rows.shape[1]}: "
                    "all files must have as many"
                )
            self._rows[index], self._stamps[index], self._known[index] = values, stamp, True
            self._fresh += fresh
            self.computed += fresh

    # --- the file ----------------------------------------------------------------------------------------------------

    def _name(self, index: int) -> bytes:
        return name_of(self._paths[index], None, self._digest or b"")

    def _load(self) -> dict[bytes, tuple[npt.NDArray[np.uint64], Rows]]:
        if self.file is None or not self.file.exists():
            return {}
        try:
            table = np.load(self.file, allow_pickle=False)
            names = [bytes(name) for name in table["name"]]
            return {n: (s, v) for n, s, v in zip(names, table["stamp"], table["values"], strict=True)}
        except _FORMAT_ERRORS as error:
            log.warning("%s can't be used (%s): features are computed anew", self.file, error)
            return {}


def _row_type(width: int) -> np.dtype[np.void]:
    return np.dtype([("name", "V16"), ("stamp", "<u8", (4,)), ("values", "<f4", (width,))])


def digest_of(extract: Extract, channels: int) -> bytes | None:
    """A hash of what extracts; None where there is something in it that can't be hashed."""
    hashed = hashlib.blake2b(_VERSION + bytes([channels]), digest_size=16)
    try:
        _add(hashed, extract)
    except (TypeError, AttributeError, pickle.PicklingError, OSError):
        return None
    return hashed.digest()


def _add(hashed: Any, part: Any) -> None:
    """The code of functions, the bytes of tensors, whatever else as it is pickled."""
    hashed.update(type(part).__qualname__.encode() + b"\0")
    if isinstance(part, functools.partial):
        _add(hashed, part.func)
        _add(hashed, [*part.args, *sorted(part.keywords.items())])
    elif isinstance(part, torch.Tensor):
        hashed.update(f"{part.dtype} {tuple(part.shape)}".encode())
        hashed.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    elif isinstance(part, list | tuple):
        for each in part:
            _add(hashed, each)
    elif inspect.isfunction(part):
        # What it calls is most often beside it. A script is edited all the time, though, and its functions rarely.
        home = inspect.getmodule(part)
        whole = home is not None and home.__name__ != "__main__"
        hashed.update(part.__qualname__.encode() + inspect.getsource(home if whole and home else part).encode())
        _add(hashed, [cell.cell_contents for cell in part.__closure__ or ()])
        _add(hashed, [*(part.__defaults__ or ()), *sorted((part.__kwdefaults__ or {}).items())])
    else:
        hashed.update(pickle.dumps(part, protocol=4))
