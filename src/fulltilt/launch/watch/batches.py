"""Batches of any structure: how many samples, how many bytes, their tensors; and how many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

DEEPEST = 6
"""So far a batch is looked into: one of the script's own making may go in circles."""


def tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Every tensor in it, in order."""
    if hasattr(batch, "element_size"):
        yield batch
    elif depth < DEEPEST:
        if isinstance(batch, Mapping):
            for value in batch.values():
                yield from tensors(value, depth + 1)
        elif isinstance(batch, list | tuple):
            for value in batch:
                yield from tensors(value, depth + 1)
        elif hasattr(batch, "__dict__") and not isinstance(batch, type):
            for value in vars(batch).values():
                yield from tensors(value, depth + 1)


def samples(batch: Any) -> int:
    """The first tensor's first dimension; 0 where there is none."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch  # nearly all of them
    if hasattr(first, "element_size") and first.dim():
        return int(first.shape[0])
    for tensor in tensors(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return 0


def size_bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(batch))


def length(sized: Any, *, tell: Callable[[str], None] | None = None) -> int | None:
    """Of a data set or a loader; None where it can't say, and `tell` is told why where that is a mistake.

    A missing length may lie deep within: a loader asks its sampler, a data set the one that it wraps. Both raise the
    same TypeError, and torch trains with them all the same; a mistake in a `__len__` is not told from that. Whatever
    else one raises: a script that never asks must not fail because we do.
    """
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
    except Exception as error:
        if tell is not None:
            tell(f"the length of {type(sized).__name__} is not known: {type(error).__name__}: {error}")
        return None
