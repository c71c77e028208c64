"""Whether a script has changed its data set or its collate_fn between two epochs: workers that live on would not know.

Compared are attributes, those of wrapped data sets and of transforms included, what functions carry with them, and
what stands in containers, tensors and arrays: a list that is shuffled in place, weights that are written over. Not
seen: what changes within the members of a large container, within arrays beyond `MOST_BYTES`, global variables, files.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sized
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from fulltilt.launch.watch.stages import Timed

MOST_BYTES = 64 << 20
"""Arrays up to here are read through, at a gigabyte per second or more, once for each epoch."""
MOST_MEMBERS = 32
"""Members of containers up to here are looked into."""


DEEPEST = 5
"""A transform in a list of a data set in a list of another."""


def loader_state(loader: Any) -> tuple[Any, ...]:
    """Of all that its workers have of the script's. Equal to a former one as long as nothing was changed."""
    known = {id(loader.dataset)}
    functions = (loader.collate_fn, loader.worker_init_fn)
    return _attributes(loader.dataset, DEEPEST, known), *(_state(one, DEEPEST, known) for one in functions)


def _attributes(value: Any, depth: int, known: set[int]) -> tuple[Any, ...]:
    attributes = sorted(getattr(value, "__dict__", {}).items())
    return tuple((name, _state(attribute, depth, known)) for name, attribute in attributes)


def _state(value: Any, depth: int, known: set[int]) -> Any:
    import torch

    value = value.function if isinstance(value, Timed) else value  # ours, in place of the script's
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if id(value) in known or depth <= 0:
        return id(value)
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _array(value, numpy)
    if isinstance(value, dict | list | tuple | set):
        members = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        inner = tuple(_state(member, depth - 1, known) for member in members) if len(members) <= MOST_MEMBERS else ()
        return id(value), hash(tuple(map(id, members))), inner
    carried = tuple(_state(one, depth - 1, known) for one in _carried(value))
    return id(value), _length(value), _attributes(value, depth - 1, known), carried


def _carried(value: Any) -> tuple[Any, ...]:
    """What a function has with it: the object that it is a method of, the variables around it, arguments."""
    if isinstance(value, MethodType):
        return (value.__self__,)
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, FunctionType):
        return value.__closure__ or ()
    return _content(value) if isinstance(value, CellType) else ()


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


def _array(array: Any, numpy: Any) -> Any:
    if array.dtype.hasobject:
        return hash(tuple(map(id, array.flat)))
    if array.nbytes > MOST_BYTES or isinstance(array, numpy.memmap):
        return array.shape
    return (
        zlib.crc32(numpy.ascontiguousarray(array).view(numpy.uint8)) if array.size and array.ndim else array.tobytes()
    )


def _length(value: Any) -> int | None:
    try:
        return len(value) if isinstance(value, Sized) else None
    except Exception:  # of the script's own making: a file that is closed, say
        return None
