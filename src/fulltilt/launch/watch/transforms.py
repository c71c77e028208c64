"""The parts of a dataset that have names of their own: its transforms, its loader function, its helpers."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fulltilt.launch.patching import put
from fulltilt.launch.watch.places import is_users
from fulltilt.launch.watch.stages import Stages, Timed, timed_call

_DEEPEST = 4
TIMED = "_fulltilt_timed"
"""Of a class whose parts are timed; of a function that was put in place of the script's, that one."""
_OPENS = ("loader", "default_loader", "pil_loader", "accimage_loader")
"""A dataset's function that opens and decodes a file."""


@dataclass(frozen=True, slots=True)
class Part:
    """A member of a dataset that is called for each sample."""

    owner: Any
    key: str | int
    """Attribute of `owner`, or place in it."""
    value: Any
    name: str
    transform: bool


def datasets(dataset: Any) -> Iterator[Any]:
    """The dataset and those it wraps: Subset, ConcatDataset and the like."""
    yield dataset
    several = _own(dataset, "datasets")
    for inner in (_own(dataset, "dataset"), *(several if isinstance(several, list | tuple) else ())):
        if inner is not None and inner is not dataset and hasattr(type(inner), "__getitem__"):
            yield from datasets(inner)


def parts(dataset: Any) -> Iterator[Part]:
    """What is called for each sample, in the order of the attributes."""
    known: set[int] = set()
    for one in datasets(dataset):
        for name, value in list(getattr(one, "__dict__", {}).items()):
            yield from _parts(one, name, value, known, 0)


def own(value: Any) -> dict[str, Any]:
    """Attributes of the object itself: no code of the user's runs for them, which might do anything."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:  # without a __dict__
        return {}
    return found if isinstance(found, dict) else {}


def _own(value: Any, name: str) -> Any:
    return own(value).get(name)


def names(dataset: Any) -> tuple[str, ...]:
    """Of the transforms that are recognised, in order."""
    return tuple(part.name for part in parts(dataset) if part.transform)


def _parts(owner: Any, key: str | int, value: Any, known: set[int], depth: int) -> Iterator[Part]:
    if depth > _DEEPEST or id(value) in known or isinstance(value, type):
        return
    members = _own(value, "transforms")
    is_transform = depth > 0 or (isinstance(key, str) and ("transform" in key or "aug" in key))
    if isinstance(members, list | tuple):
        known.add(id(value))
        for place, member in enumerate(members):
            yield from _parts(members, place, member, known, depth + 1)
    elif isinstance(getattr(value, "__dict__", None), dict) and "target_transform" in vars(value):
        known.add(id(value))  # torchvision's StandardTransform: what it holds
        for name in ("transform", "target_transform"):
            yield from _parts(value, name, vars(value).get(name), known, depth + 1)
    elif callable(value) and not hasattr(type(value), "__getitem__"):
        known.add(id(value))
        name = getattr(value, "__name__", None) or value.__class__.__name__  # what it passes for
        opens = key in _OPENS or name in _OPENS
        yield Part(owner, key, value, "decode" if opens else name, is_transform and not opens)


def time_parts(dataset: Any, stages: Stages) -> None:
    """From now on each part's time counts under its name, in this process."""
    for part in parts(dataset):
        if isinstance(
            part.value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | functools.partial
        ):
            _replace(part, Timed(stages, part.name, part.value))
        elif not isinstance(part.value, Timed):
            _time_class(type(part.value), part.value.__class__.__name__, stages)
    for one in datasets(dataset):
        _time_helpers(type(one), stages)


def _replace(part: Part, timed: Timed) -> None:
    if isinstance(part.key, str):
        vars(part.owner)[part.key] = timed
    elif isinstance(part.owner, list):
        part.owner[part.key] = timed


def _time_class(kind: type, name: str, stages: Stages) -> None:
    if TIMED in vars(kind) or not kind.__flags__ & _HEAP_TYPE:
        return
    put(kind, "__call__", _timed_method(name, kind.__call__, stages))
    put(kind, TIMED, True)


_HEAP_TYPE = 1 << 9
"""Made in Python: its attributes can be set."""


def _time_helpers(kind: type, stages: Stages) -> None:
    """Methods and functions of the user's that `__getitem__` calls by name."""
    get = getattr(kind, "__getitem__", None)
    code = getattr(get, "__code__", None)
    if code is None or TIMED in vars(kind) or not is_users(code.co_filename):
        return
    put(kind, TIMED, True)
    scope = get.__globals__  # type: ignore[union-attr]
    for name in code.co_names:
        method = vars(kind).get(name)
        if isinstance(method, types.FunctionType):
            put(kind, name, _timed_method(name, method, stages))
        function = scope.get(name)
        if isinstance(function, types.FunctionType) and is_users(function.__code__.co_filename):
            scope[name] = _timed_method(name, function, stages)


def _timed_method(name: str, function: Any, stages: Stages) -> Any:
    call = timed_call(stages, name, function)
    vars(call)[TIMED] = function
    return call


def theirs(value: Any) -> Any:
    """The script's own, where it was put something in place of."""
    if isinstance(value, Timed):
        return value.function
    return vars(value).get(TIMED, value) if isinstance(value, types.FunctionType) else value
