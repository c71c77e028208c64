"""A short look at a data set before it is fed: how large and how slow a sample is, and whether threads could make it.

It is taken in a process of its own: what a data set opens on first use, draws or breaks stays there.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from fulltilt.errors import cause
from fulltilt.feed.datasets.shelf import begin_for, fetch, freeze_in_forks
from fulltilt.measure.threads import compare_threads, take_turn
from fulltilt.nested import map_parts, map_tensors

_LIMIT_SECONDS = 30.0
_COMPARED = 16
"""Samples that are fetched a second time, to see whether they are the same."""
_COLLATED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was seen. What could not be seen is absent."""

    bytes_per_sample: float | None = None
    """Of a collated batch's tensors."""
    seconds_per_sample: float | None = None
    threads: int = 0
    speedup: float | None = None
    """The rate of so many threads, as a multiple of one's."""
    draws: tuple[str, ...] = ()
    """Whose random numbers a sample takes: "python", "numpy", "torch"."""
    repeatable: bool = False
    """Samples that several threads fetched at once, and one again, were the same."""
    problem: str | None = None
    """Why there is nothing, or not all of it."""


def probe(
    dataset: Any,
    indices: Sequence[Any],
    *,
    threads: int,
    collate: Callable[[Any], Any] | None = None,
    context: Any = None,
    limit_seconds: float = _LIMIT_SECONDS,
) -> Probed:
    """Look at these samples; `threads` less than 2 only sees how large and how slow they are."""
    context = multiprocessing.get_context(context) if context is None or isinstance(context, str) else context
    freeze_in_forks()
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(
        target=_look, args=(sending, os.getpid(), dataset, list(indices), threads, collate), daemon=True
    )
    try:
        try:
            child.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return Probed(problem=f"the data set can't be sent to another process: {error}")
        sending.close()
        try:
            found = receiving.recv() if receiving.poll(limit_seconds) else None
        except EOFError:
            child.join()
            return Probed(problem=f"the process that looked at it ended with {cause(child.exitcode or 0)}")
        return found or Probed(problem=f"nothing could be seen within {limit_seconds:g} s")
    finally:
        receiving.close()
        if child.pid is not None:
            child.kill()
            child.join()
            child.close()


def _look(
    sending: Any, trainer: int, dataset: Any, indices: list[Any], threads: int, collate: Callable[[Any], Any] | None
) -> None:
    """The process. OpenMP's threads don't survive a fork, so torch computes with one, as in a DataLoader's workers."""
    begin_for(trainer)
    torch.set_num_threads(1)
    try:
        sending.send(look(dataset, indices, threads=threads, collate=collate))
    except Exception as error:  # the data set's own: it is told again when that sample's turn has come
        sending.send(Probed(problem=f"{type(error).__name__}: {error}"))


def look(dataset: Any, indices: list[Any], *, threads: int, collate: Callable[[Any], Any] | None = None) -> Probed:
    """Fetch some samples: the first as a warm-up, then by one thread and, if that can be, by several."""
    before = _generators()
    some = fetch(dataset, indices[:_COLLATED])
    size = _tensor_bytes((collate or default_collate)(some)) / len(indices[:_COLLATED])
    numbers = itertools.cycle(indices[_COLLATED:] or indices)
    kept: list[tuple[Any, Any]] = []

    def call() -> None:
        index = next(numbers)  # one step of C code: threads can share it
        sample = fetch(dataset, [index])[0]
        if len(kept) < _COMPARED:
            kept.append((index, sample))

    alone = take_turn(call, 1)
    after = _generators()
    draws = tuple(name for name, state in before.items() if after[name] != state)
    if threads < 2 or draws:
        return Probed(bytes_per_sample=size, seconds_per_sample=1 / alone.rate, threads=threads, draws=draws)
    kept.clear()  # those that several threads fetch, who come first, are the ones to compare
    compared = compare_threads(call, threads)
    return Probed(
        bytes_per_sample=size,
        seconds_per_sample=compared.seconds_per_call,
        threads=threads,
        speedup=compared.speedup,
        repeatable=all(digest(sample) == digest(fetch(dataset, [index])[0]) for index, sample in kept),
    )


def _tensor_bytes(batch: Any) -> int:
    sizes: list[int] = []
    map_tensors(lambda tensor: sizes.append(tensor.numel() * tensor.element_size()), batch)
    return sum(sizes)


def _generators() -> dict[str, bytes]:
    """The states of the random numbers that everything in a process shares."""
    legacy = np.random.get_state(legacy=False)
    return {
        "python": pickle.dumps(random.getstate()),
        "numpy": pickle.dumps(legacy),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def digest(sample: Any) -> str:
    """The same for the same values."""
    found = hashlib.blake2b()
    arrays = map_tensors(lambda tensor: tensor.detach().cpu().numpy(), sample)

    def note(array: Any) -> str:
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
        return "array"

    rest = map_parts(np.ndarray, note, arrays)
    try:
        found.update(pickle.dumps(rest))
    except (pickle.PicklingError, TypeError, AttributeError):
        found.update(repr(rest).encode())
    return found.hexdigest()
