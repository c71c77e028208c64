"""Workers that live on draw as new ones would: for each epoch they are seeded as torch seeds those.

The training process draws the seed that new workers would have been started with, and sends it with the word that
another epoch begins, or with the indices of its batches where those come before the last epoch is over. A
`worker_init_fn` that seeds, too, is called again; one that does not (it opens files, say) is what workers live on for.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker


def install() -> None:
    if worker._ResumeIteration is not Resume:
        worker._ResumeIteration = Resume  # type: ignore[misc]


def draw_seed(generator: Any = None) -> int:
    """As loaders draw their workers' and samplers their order's; from torch's own generator where there is no other."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def are_alive(iterator: Any) -> bool:
    """Its workers, all of them."""
    return all(process.is_alive() for process in getattr(iterator, "_workers", ()))


class Resume(worker._ResumeIteration):
    """The word. Where it arrives in a worker, that is seeded."""

    def __reduce__(self) -> Any:
        return _arrived, (self.seed,)


class Indices(list[Any]):
    """A batch's, of an epoch with a seed of its own. Where they arrive in a worker, that is seeded, once an epoch."""

    seed: int
    epoch: int

    def __reduce__(self) -> Any:
        return _arrived_with, (list(self), self.seed, self.epoch)


def for_epoch(indices: list[Any], seed: int, epoch: int) -> Indices:
    """`epoch` is another number for each, until the word comes."""
    found = Indices(indices)
    found.seed, found.epoch = seed, epoch
    return found


class Init:
    """A `worker_init_fn`, of which is seen whether it seeds."""

    def __init__(self, init: Callable[[int], Any]) -> None:
        self._init = init

    def __call__(self, number: int) -> None:
        global _seeding  # noqa: PLW0603  # of this worker
        before = _states()
        self._init(number)
        _seeding = self._init if _states() != before else None


_seeding: Callable[[int], Any] | None = None
_epoch: int | None = None
"""Whose indices this worker was seeded with last; None where that was torch's start, or the word."""


def _arrived(seed: int | None) -> Any:
    info = get_worker_info()
    if info is not None and seed is not None:  # it comes back to the training process as an answer
        _seed(seed, info, None)
    return Resume(seed)


def _arrived_with(indices: list[Any], seed: int, epoch: int) -> list[Any]:
    info = get_worker_info()
    if info is not None and epoch != _epoch:
        _seed(seed, info, epoch)
    return indices


def _seed(base: int, info: Any, epoch: int | None) -> None:
    """As `torch.utils.data._utils.worker._worker_loop` does."""
    global _epoch  # noqa: PLW0603  # of this worker
    _epoch = epoch
    seed = base + info.id
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        generate: Any = worker._generate_state
        numpy.random.seed(generate(base, info.id))
    worker._worker_info = worker.WorkerInfo(
        id=info.id, num_workers=info.num_workers, seed=seed, dataset=info.dataset
    )  # fmt: skip
    if _seeding is not None:
        _seeding(info.id)


def _states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    found: list[Any] = [random.getstate(), torch.get_rng_state().tolist()]
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found.append((name, keys.tolist(), *rest))
    return found
