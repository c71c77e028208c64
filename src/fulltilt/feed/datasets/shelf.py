"""A data set as its workers see it: whole batches by request, random numbers that follow from the request alone.

Torch seeds a worker once, so what it draws depends on which batches it happens to get: another number of workers, other
random numbers. A request carries a seed of its own, and a batch is the same whoever makes it.
"""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from fulltilt.decode.video.forks import keep_converters
from fulltilt.errors import FulltiltError
from fulltilt.feed.order import random_words
from fulltilt.words import some

_SEEDS = 0x5EED
"""Keeps the seeds of batches apart from the words that make permutations."""


@dataclass(frozen=True, slots=True)
class Request:
    """A batch to be made."""

    indices: list[Any]
    seed: int | None = None
    """For Python's, NumPy's and torch's random numbers; None leaves them as they are."""

    def __str__(self) -> str:
        return some(self.indices, 8)


class Shelf:
    """Fetches what a request names. A DataLoader takes it for a data set and a request for a list of indices."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, request: Request) -> Any:
        if request.seed is not None:
            _seed(request.seed)
        try:
            return fetch(self.dataset, request.indices)
        except FulltiltError as error:
            return Refused(error)


@dataclass(frozen=True, slots=True)
class Refused:
    """In the place of a batch: what says in a line why there is none. Torch would put a traceback in front of it."""

    error: FulltiltError


@dataclass(frozen=True, slots=True)
class Passing:
    """A collate function that lets a refusal through."""

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Any:
        return samples if isinstance(samples, Refused) else self.collate(samples)


def batch_seed(seed: int, epoch: int, number: int, rank: int = 0) -> int:
    """A seed for one batch of an epoch, by its number or place in it."""
    return int(random_words(seed, _SEEDS, (number, epoch, rank)).random_raw()) >> 1


def fetch(dataset: Any, indices: list[Any]) -> Any:
    """The samples, all at once where the data set can do so: as a DataLoader fetches them."""
    together = getattr(dataset, "__getitems__", None)
    return together(indices) if together else [dataset[index] for index in indices]


@dataclass(frozen=True, slots=True)
class WorkerInit:
    """What a worker process does before its first batch: ours, then its owner's."""

    own: Callable[[int], None] | None = None
    trainer: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        freeze_in_forks()  # a worker collects garbage before it calls us: torch does this and that there first

    def __call__(self, worker: int) -> None:
        begin_for(self.trainer)
        info: Any = torch.utils.data.get_worker_info()
        if isinstance(info.dataset, Shelf):
            # What an owner's worker_init_fn expects to find; torch's own setter refuses.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self.own is not None:
            self.own(worker)


def begin_for(trainer: int) -> None:
    """What every process that works for the trainer, and may be a fork of it, does first."""
    gc.freeze()  # see freeze_in_forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends its workers
    threading.Thread(target=_leave_with, args=(trainer,), daemon=True).start()


@cache
def freeze_in_forks() -> None:
    """Once in a process: whatever is forked from it leaves its garbage alone, from the first instruction on.

    What a trainer has left to the garbage collector is the trainer's. In a fork, CUDA events or graphs among it would
    call a driver that does not survive the fork, and end the process.
    """
    keep_converters()  # a data set may use PyAV, and the trainer has tried it before
    os.register_at_fork(after_in_child=gc.freeze)


def _leave_with(trainer: int) -> None:
    """End this process when the trainer has ended, however: a worker that waits on a full pipe would never see it.

    Torch's workers compare their parent with the one they were born to, which can be gone by then.
    """
    try:
        poll = select.poll()
        poll.register(os.pidfd_open(trainer), select.POLLIN)
        poll.poll()
    except ProcessLookupError:
        pass
    os._exit(1)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(seed)
