"""Whether a script has changed its data set or its collate_fn between two epochs: workers that live on would not know.

Compared are attributes, those of wrapped data sets and of transforms included, and what stands in containers, tensors
and arrays: a list that is shuffled in place, weights that are written over. So is what the code of its classes and
functions finds around it: attributes of a class, variables of a script. Not seen: what changes within the members of a
large container, within arrays beyond `MOST_BYTES` and files, and what libraries keep for themselves.
"""

from __future__ import annotations

import dis
import functools
import sys
import zlib
from collections.abc import Iterator, Sized
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fulltilt.launch.watch.places import is_users
from fulltilt.launch.watch.transforms import TIMED, theirs

MOST_BYTES = 64 << 20
"""Arrays up to here are read through, at a gigabyte per second or more, once for each epoch."""
MOST_MEMBERS = 32
"""Members of containers up to here are looked into."""


DEEPEST = 5
"""A transform in a list of a data set in a list of another."""
_SHARED = object()
_PACKAGES = ("multiprocessing", "ctypes", "_ctypes")
"""Of values that processes share, of queues and managers."""


def loader_state(loader: Any) -> tuple[Any, ...]:
    """Of all that its workers have of the script's. Equal to a former one as long as nothing was changed."""
    known = {id(loader.dataset)}
    functions = (loader.collate_fn, loader.worker_init_fn)
    return _attributes(loader.dataset, DEEPEST, known), *(_state(one, DEEPEST, known) for one in functions)


def shares(state: Any) -> bool:
    """Whether a loader's state has something in it by which a script may tell its workers news while they work."""
    return isinstance(state, tuple) and (state[:1] == (_SHARED,) or any(map(shares, state)))


def _attributes(value: Any, depth: int, known: set[int]) -> tuple[Any, ...]:
    attributes = sorted(getattr(value, "__dict__", {}).items())
    found = [*attributes, *around(value)]
    return tuple((name, _state(attribute, depth, known)) for name, attribute in found)


def around(value: Any) -> Iterator[tuple[str, Any]]:
    """What else its code works with."""
    if isinstance(value, MethodType):
        yield "self", value.__self__
        value = theirs(value.__func__)
    if isinstance(value, functools.partial):
        yield from (("function", value.func), ("given", value.args), ("named", value.keywords))
    if isinstance(value, FunctionType):
        yield from _variables(value)
        return
    for kind in type(value).__mro__:
        members = {name: theirs(one) for name, one in vars(kind).items() if name != TIMED}
        functions = [one for one in members.values() if isinstance(one, FunctionType)]
        if not any(is_users(one.__code__.co_filename) for one in functions):
            continue
        for name, attribute in members.items():
            if isinstance(attribute, FunctionType):
                yield from _variables(attribute)
            elif not name.startswith("__") and not isinstance(attribute, type) and not hasattr(attribute, "__get__"):
                yield name, attribute
        yield from (
            (name, getattr(value, name, None)) for name in vars(kind).get("__slots__", ()) if name != "__dict__"
        )


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Of the script, that a function of the script's looks up as it runs."""
    if not is_users(function.__code__.co_filename):
        return
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    found = [(name, cell.cell_contents) for name, cell in cells if name != "__class__" and _is_filled(cell)]
    found += [
        (name, function.__globals__[name]) for name in _looked_up(function.__code__) if name in function.__globals__
    ]
    yield from found


@functools.cache
def _looked_up(code: CodeType) -> tuple[str, ...]:
    names = (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    return tuple(sorted(set(names)))


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _state(value: Any, depth: int, known: set[int]) -> Any:
    value = theirs(value)
    if isinstance(value, str | int | float | bool | type(None)):
        return value
    if id(value) in known or depth <= 0 or isinstance(value, type | ModuleType | BuiltinFunctionType):
        return id(value)
    known.add(id(value))
    numpy = sys.modules.get("numpy")
    if _is_shared(value, numpy):
        return _SHARED, id(value)
    numbers = _numbers(value, numpy)
    if numbers is not None:
        return id(value), numbers
    if isinstance(value, dict | list | tuple | set):
        members = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        inner = tuple(_state(member, depth - 1, known) for member in members) if len(members) <= MOST_MEMBERS else ()
        return id(value), hash(tuple(map(id, members))), inner
    return id(value), _length(value), _attributes(value, depth - 1, known)


def _is_shared(value: Any, numpy: Any) -> bool:
    if numpy is not None and isinstance(value, numpy.memmap):
        return bool(value.mode != "r")
    return type(value).__module__.partition(".")[0] in _PACKAGES


def _numbers(value: Any, numpy: Any) -> Any:
    """What stands in a tensor or an array; None of anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        return -1 if value.is_inference() else value._version
    return _array(value, numpy) if numpy is not None and isinstance(value, numpy.ndarray) else None


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
