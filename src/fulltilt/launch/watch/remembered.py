"""Whether a data set keeps what it makes: a cache that fills in the first epoch, a count or a list of its samples.

Of workers each has one of its own, with its share of the samples, and the training process, where the script may read
it, never sees theirs. And an epoch that fills a cache says little of those that find it full.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from fulltilt.launch.watch.changed import around
from fulltilt.launch.watch.held import holds_open_file
from fulltilt.launch.watch.places import is_users
from fulltilt.launch.watch.transforms import datasets, own

FIRST_LOOKS = 8
"""Batches that are looked at in each process that makes them."""
LEAST_TIMES = 2
"""What grew once was made ready for all samples."""
LEAST_SHARE = 0.5
"""Of a batch's samples: what grows by fewer holds shards, say, that have been opened."""
MOST_NUMBERS = 1024
"""Of a sample in an array, which are compared."""
DEEPEST = 2

Sizes = dict[str, Any]
"""By name: how much is in it, or what stands there for each of a batch's samples."""


class Remembered:
    """What grows with the samples that a loader makes in this process."""

    __slots__ = ("_left", "_times", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        """`Photos.cache`; None where nothing was seen to grow."""
        self._left = FIRST_LOOKS
        self._times: Counter[str] = Counter()

    def begun(self, dataset: Any, indices: Any) -> Sizes | None:
        """Before a batch; None where it is not looked at."""
        if self.name is not None or not self._left:
            return None
        self._left -= 1
        return _sizes(dataset, indices)

    def made(self, dataset: Any, indices: Any, before: Sizes) -> None:
        after, samples = _sizes(dataset, indices), len(_listed(indices))
        for name, size in after.items():
            if name in before and _has_grown(before[name], size, samples):
                self._times[name] += 1
        self.name = next((name for name, times in self._times.items() if times >= LEAST_TIMES), None)


def _sizes(dataset: Any, indices: Any) -> Sizes:
    try:
        return dict(_found(dataset, _listed(indices)))
    except Exception:  # objects of the script's are asked, and the script must not fail for us
        return {}


def _listed(indices: Any) -> Sequence[Any]:
    return indices if isinstance(indices, list | tuple) else [indices]


def _found(dataset: Any, indices: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    samples = len(dataset)
    places = indices if all(hasattr(at, "__index__") for at in indices) else None  # a sampler's own keys
    known = list(datasets(dataset))
    for one in known:
        yield from _within(one, type(one).__name__, places, samples, DEEPEST, apart=known)
        inner = own(one).get("indices")  # a Subset's, of what it wraps
        if places is not None and type(one).__name__ == "Subset" and inner is not None:
            places = [inner[at] for at in places]
        elif own(one).get("datasets") is not None:
            places = None


def _within(
    value: Any, name: str, places: Sequence[Any] | None, samples: int, depth: int, *, apart: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """`apart` are looked into by themselves: their places are others."""
    members = [(f"{name}.{key}", one) for key, one in list(own(value).items())]
    for kind in type(value).__mro__:
        members += [(f"{name}.{key}", one) for key, one in vars(kind).items() if _cache_info(one)]
    members += [(f"{name}.{key}" if hasattr(type(value), key) else key, one) for key, one in around(value)]
    for key, one in members:
        size = _size(one, places, samples)
        if size is not None:
            yield key, size
        elif depth > 1 and own(one) and _is_of_users(type(one)) and not any(one is other for other in apart):
            yield from _within(one, f"{name}.{type(one).__name__}", places, samples, depth - 1, apart=apart)


def _is_of_users(kind: type) -> bool:
    codes = (getattr(one, "__code__", None) for one in vars(kind).values())
    return any(code is not None and is_users(code.co_filename) for code in codes)


def _size(value: Any, places: Sequence[Any] | None, samples: int) -> Any:
    """None of what can't grow, or is meant for several processes."""
    if type(value) is int:
        return None if places and value == places[-1] else value  # which sample was made last
    if isinstance(value, list) and places is not None and len(value) >= samples:
        return [id(value[at]) for at in places]  # room that was made before
    if isinstance(value, dict | set | deque | list):
        return None if holds_open_file(_last(value)) else (len(value),)
    if (asked := _cache_info(value)) is not None:
        info = asked()
        return (info.currsize,) if info.maxsize is None or info.maxsize >= samples else None
    return _of_numbers(value, places, samples)


def _cache_info(value: Any) -> Any:
    """As `functools.lru_cache` has it; others' own code, which may ask a server for any name, is not asked."""
    return value.cache_info if hasattr(type(value), "cache_info") else own(value).get("cache_info")


def _last(value: Any) -> Any:
    if isinstance(value, set):
        return None
    return next(reversed(value.values() if isinstance(value, dict) else value), None)


def _of_numbers(value: Any, places: Sequence[Any] | None, samples: int) -> Any:
    import torch

    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        shared = value.is_inference() or value.is_shared()  # type: ignore[no-untyped-call]
        return None if shared else (value._version,)
    if numpy is None or not isinstance(value, numpy.ndarray) or value.dtype.hasobject or not places:
        return None
    owned = value.base is None and not isinstance(value, numpy.memmap)
    return [_numbers(value[at]) for at in places] if owned and len(value) >= samples else None


def _numbers(row: Any) -> bytes:
    flat = row.reshape(-1)
    found: bytes = flat[:: max(1, flat.size // MOST_NUMBERS)].tobytes()
    return found


def _has_grown(before: Any, after: Any, samples: int) -> bool:
    if type(before) is not type(after):
        return False
    least = LEAST_SHARE * samples
    if isinstance(after, list):
        return bool(sum(one != other for one, other in zip(before, after, strict=True)) >= least)
    more: int = after[0] - before[0] if isinstance(after, tuple) else after - before
    return more >= least if isinstance(after, tuple) else more == samples > 1  # a count; other numbers come and go
