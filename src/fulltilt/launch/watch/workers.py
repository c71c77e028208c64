"""Hooks where samples are made: torch's fetchers, its worker processes, and the libraries that read and decode."""

from __future__ import annotations

import builtins
import functools
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

from fulltilt.launch.imports import after_import
from fulltilt.launch.patching import put
from fulltilt.launch.watch.batches import samples
from fulltilt.launch.watch.draws import Looks, states, tied, tied_to_batch
from fulltilt.launch.watch.loaders import NUMBER
from fulltilt.launch.watch.remembered import Remembered
from fulltilt.launch.watch.stages import Stages, Timed, timed_call
from fulltilt.launch.watch.traces import without_us
from fulltilt.launch.watch.transforms import time_parts
from fulltilt.launch.watch.watch import Watch

LIBRARIES: dict[str, dict[str, tuple[str, ...]]] = {
    "PIL.Image": {"decode": ("open",)},
    "cv2": {"decode": ("imread", "imdecode")},
    "simplejpeg": {"decode": ("decode_jpeg",)},
    "torchvision.io": {"decode": ("read_image", "decode_image", "decode_jpeg", "decode_png"), "read": ("read_file",)},
    "soundfile": {"decode": ("read",)},
    "numpy": {"read": ("load", "fromfile")},
}
"""Functions that read or decode, by module and stage."""


def install(watch: Watch, stages: Stages, *, tie_draws: int | None) -> None:
    """`tie_draws`, where given, is the seed that the random draws of every sample and batch are tied to."""
    from torch.utils.data._utils import fetch

    _fetchers(fetch, stages, tie_draws)
    _asked_for_seeds(stages)
    _worker_loop(watch, stages)
    _pinning(stages)
    _failing()
    put(builtins, "open", _opening(stages, builtins.open))
    put(Path, "read_bytes", timed_call(stages, "read", Path.read_bytes))
    for module, kinds in LIBRARIES.items():
        after_import(module, functools.partial(_time_library, stages, kinds))
    after_import("PIL.ImageFile", functools.partial(_time_pillow, stages))


def _fetchers(fetch: Any, stages: Stages, tie_draws: int | None) -> None:
    made = fetch._BaseDatasetFetcher.__init__

    @functools.wraps(made)
    def __init__(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:  # noqa: N807
        time_parts(dataset, stages)
        if tie_draws is not None:
            dataset = tied(dataset, tie_draws)
        made(self, dataset, auto_collation, Timed(stages, "collate", collate_fn), drop_last)
        self._fulltilt_loader = loader = os.environ.get(NUMBER)
        # Samples whose draws are tied leave the generators as they were: there is nothing to see.
        if loader is not None and tie_draws is None:
            self._fulltilt_looks = stages.looks.setdefault(loader, Looks())
            if not hasattr(dataset, "__iter__"):
                self._fulltilt_remembered = stages.remembered.setdefault(loader, Remembered())

    put(fetch._BaseDatasetFetcher, "__init__", __init__)
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        put(kind, "fetch", _fetching(stages, kind.fetch))
    if tie_draws is not None:
        put(fetch._MapDatasetFetcher, "fetch", tied_to_batch(fetch._MapDatasetFetcher.fetch, tie_draws))


def _fetching(stages: Stages, fetched: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fetched)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        looks = getattr(self, "_fulltilt_looks", None)
        before = states() if looks is not None and looks.due() else None
        remembered = getattr(self, "_fulltilt_remembered", None)
        sizes = None if remembered is None else remembered.begun(self.dataset, possibly_batched_index)
        stages.looking = looks if before is not None else None
        try:
            return timed(self, possibly_batched_index)
        finally:
            stages.looking = None
            if looks is not None and before is not None:
                looks.made(before)
            if remembered is not None and sizes is not None:
                remembered.made(self.dataset, possibly_batched_index, sizes)
            stages.write_now_and_then()

    def timed(self: Any, possibly_batched_index: Any) -> Any:
        if stages.skips():
            return fetched(self, possibly_batched_index)
        loader = getattr(self, "_fulltilt_loader", None)
        if loader is None or stages.thread:
            return fetched(self, possibly_batched_index)
        stages.begin(loader, len(possibly_batched_index) if self.auto_collation else 1)
        batch = None
        try:
            batch = fetched(self, possibly_batched_index)
            return batch
        finally:
            stages.end(samples(batch))

    return fetch


def _asked_for_seeds(stages: Stages) -> None:
    """A sample that asks for its process' seed, to make a generator of it, draws as well: each worker has another."""
    import torch

    original = torch.initial_seed

    @functools.wraps(original)
    def initial_seed() -> int:
        if stages.looking is not None:
            stages.looking.draws = True
        return original()

    put(torch, "initial_seed", initial_seed)


def _worker_loop(watch: Watch, stages: Stages) -> None:
    from torch.utils.data._utils import worker

    looped = worker._worker_loop

    @functools.wraps(looped)
    def loop(*args: Any, **kwargs: Any) -> None:
        watch.thread = 0  # a worker trains nothing
        stages.in_worker = True
        _handing_over(stages)
        try:
            looped(*args, **kwargs)
        finally:
            stages.write()

    put(worker, "_worker_loop", loop)


def _handing_over(stages: Stages) -> None:
    """In a worker: batches are written for the training process by a thread of the queue."""
    from multiprocessing.reduction import ForkingPickler

    written = ForkingPickler.dumps
    loader = os.environ.get(NUMBER)
    if loader is None:
        return
    tally = stages.tally(loader)

    def dumps(*args: Any, **kwargs: Any) -> Any:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return written(*args, **kwargs)
        finally:
            tally.add("hand over", time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)

    put(ForkingPickler, "dumps", dumps)


def _pinning(stages: Stages) -> None:
    """In the training process, on a thread of each loader's; without workers, `next` pins as a part of itself."""
    from torch.utils.data._utils import pin_memory

    pinned: Any = pin_memory.pin_memory
    looped: Any = pin_memory._pin_memory_loop
    here = threading.local()

    @functools.wraps(pinned)
    def pin(data: Any, *args: Any, **kwargs: Any) -> Any:
        if here.__dict__.get("queue") is None or here.busy:
            return pinned(data, *args, **kwargs)
        here.busy = True
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return pinned(data, *args, **kwargs)
        finally:
            here.busy = False
            loader = stages.queues.get(here.queue)
            if loader is not None:
                stages.tally(loader).add("pin", time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)

    @functools.wraps(looped)
    def loop(in_queue: Any, *args: Any, **kwargs: Any) -> Any:
        here.queue, here.busy = id(in_queue), False
        return looped(in_queue, *args, **kwargs)

    put(pin_memory, "pin_memory", pin)
    put(pin_memory, "_pin_memory_loop", loop)


def _failing() -> None:
    """A worker's error is sent to the training process as text."""
    from torch._utils import ExceptionWrapper

    made: Any = ExceptionWrapper.__init__

    @functools.wraps(made)
    def __init__(self: Any, exc_info: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kind, error, _ = exc_info or sys.exc_info()
        without_us(error)
        made(self, (kind, error, None if error is None else error.__traceback__), *args, **kwargs)

    put(ExceptionWrapper, "__init__", __init__)


class _Reader(io.BufferedReader):
    """A file opened for reading, as `open` gives, that counts its reads."""

    stages: Stages

    def read(self, size: int | None = -1, /) -> Any:
        return self._timed(super().read, size)

    def readinto(self, buffer: Any, /) -> Any:
        return self._timed(super().readinto, buffer)

    def _timed(self, function: Callable[..., Any], argument: Any) -> Any:
        stages = self.stages
        if get_ident() != stages.thread:
            return function(argument)
        stages.enter("read")
        try:
            return function(argument)
        finally:
            stages.leave()


def _opening(stages: Stages, opened: Callable[..., Any]) -> Callable[..., Any]:
    reader = type("BufferedReader", (_Reader,), {"stages": stages})

    @functools.wraps(opened)
    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if get_ident() != stages.thread:
            return opened(file, mode, *args, **kwargs)
        stages.enter("read")
        try:
            found = opened(file, mode, *args, **kwargs)
        finally:
            stages.leave()
        return reader(found.detach()) if type(found) is io.BufferedReader else found

    return open


def _time_library(stages: Stages, kinds: dict[str, tuple[str, ...]], module: Any) -> None:
    for stage, names in kinds.items():
        for name in names:
            if hasattr(module, name):
                put(module, name, timed_call(stages, stage, getattr(module, name)))


def _time_pillow(stages: Stages, module: Any) -> None:
    """Pillow decodes when pixels are first asked for."""
    put(module.ImageFile, "load", timed_call(stages, "decode", module.ImageFile.load))
