"""A generator of random numbers that a data set keeps for itself. Looked for as far down as changes of a data set are.

In the training process it goes on from epoch to epoch, in workers that start for each it begins anew, in those that
live on it does not. The first epoch, which losses are compared of, may be the same.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from fulltilt.launch.apply.changed import DEEPEST, MOST_MEMBERS

_SEE_TO_IT = ("albumentations",)
"""Packages whose generators know of workers."""


def generator_in(dataset: Any) -> str | None:
    """The name of its type; None where there is none."""
    return _found(dataset, DEEPEST + 1, set())


def _is_generator(value: Any) -> bool:
    import torch

    numpy = sys.modules.get("numpy")
    kinds = (random.Random, torch.Generator)
    kinds += () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _found(value: Any, depth: int, known: set[int]) -> str | None:
    if depth <= 0 or id(value) in known or isinstance(value, str | bytes | int | float | type | type(None)):
        return None
    known.add(id(value))
    if _is_generator(value):
        return type(value).__name__
    if isinstance(value, dict | list | tuple | set):
        members = list(value.values()) if isinstance(value, dict) else list(value)
        members = members if len(members) <= MOST_MEMBERS else []
    else:
        own = getattr(value, "__dict__", None)
        members = list(own.values()) if isinstance(own, dict) and _package(value) not in _SEE_TO_IT else []
    inner = (_found(member, depth - 1, known) for member in members)
    return next((name for name in inner if name is not None), None)


def _package(value: Any) -> str:
    return type(value).__module__.split(".")[0]
