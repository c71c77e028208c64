"""Before a data set is fed: a look at it and at what the machine has free, then the decision who makes its batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from fulltilt.errors import InputError
from fulltilt.feed.datasets.hosting import Free, Hosting, host
from fulltilt.feed.datasets.leg import Kind
from fulltilt.feed.datasets.probing import Probed, probe
from fulltilt.machine.decision import Decision
from fulltilt.machine.memory import read_memory, read_shared_memory

log = logging.getLogger("fulltilt.feed")

PROBED = 512
"""Samples that the look may reach for."""
_THREADS = 8


def free_here(cores: int, ranks: int) -> Free:
    """This rank's share of what is free on the machine."""
    shm = read_shared_memory()
    return Free(
        cores=max(1, cores // ranks),
        memory_bytes=read_memory().available_bytes // ranks,
        shm_bytes=None if shm is None else shm.free_bytes // ranks,
    )


def prepare(
    dataset: Any,
    indices: Sequence[Any],
    *,
    free: Free,
    batch_size: int,
    ahead: int,
    kind: Kind | Literal["auto"] = "auto",
    workers: int | None = None,
    own: int | None = None,
    depth: int | None = None,
    collate: Callable[[Any], Any] | None = None,
    context: Any = None,
) -> Decision[Hosting]:
    """Who makes the batches; arguments as for `host`. Samples are fetched in a process of their own, or not at all."""
    if workers is not None and workers < 0:
        raise InputError(f"num_workers={workers} must be at least 0, or 'auto'")
    probed = Probed(problem="nothing is made by workers")
    if workers != 0:
        threads = min(max(free.cores, 2), _THREADS) if kind == "auto" or workers is None else 1
        probed = probe(dataset, indices, threads=threads, collate=collate, context=context)
        if probed.problem is not None:
            _check_cuda(probed.problem)
            log.info("the data set could not be looked at: %s", probed.problem)
    found = host(probed, free, batch_size=batch_size, kind=kind, workers=workers, own=own, depth=depth, ahead=ahead)
    if workers is not None and found.value.workers < workers:
        log.warning("%d workers instead of %d: %s", found.value.workers, workers, found.reason)
    return found


def _check_cuda(problem: str) -> None:
    if "CUDA in forked subprocess" in problem:
        raise InputError(
            f"the data set uses CUDA, which worker processes that are forked can't ({problem.splitlines()[0]}): "
            "leave tensors on the CPU, the feed moves them; or set num_workers=0"
        )
