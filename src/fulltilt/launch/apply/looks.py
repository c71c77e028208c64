"""Whether a module still looks as it did: all of it that decides what its code does, and that Python may change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_HUNG = ("_parameters", "_buffers", "_modules")
_EVERY = frozenset(vars(torch.nn.Module()))
"""What each module has."""
_MOST_MEMBERS = 256
"""Of containers up to here the members are compared, of larger ones their number."""
_DEEPEST = 3
PLAIN = (bool, int, float, str, type(None), torch.dtype)
"""Attributes of these types may decide what a module's code does."""


class Looks:
    """How a module looked when it was recorded: what a graph bakes in and Python may change.

    It is looked at before each replay, so what is compared is what the interpreter compares without running code: who
    hangs where, how much is in lists and hooks, where weights lie. Only where that differs, values are compared.
    """

    def __init__(self, module: Any) -> None:
        self._state = _state(module)
        self._note(module)

    def hold(self, module: Any) -> bool:
        if (
            [*map(len, self._hung), *map(len, self._options), *map(len, self._containers)] == self._lengths
            and all(map(is_, chain.from_iterable(map(_members, self._hung)), self._held))
            and all(map(is_, chain.from_iterable(map(_members, self._options)), self._kept))
            and [tensor.data_ptr() for tensor in self._tensors] == self._places
            and [tensor.requires_grad for tensor in self._tensors] == self._wanted
        ):
            return True
        if _state(module) != self._state:
            return False
        self._note(module)  # the same numbers, given again
        return True

    def _note(self, module: Any) -> None:
        owned = [vars(child) for child in module.modules()]
        self._hung = [hung for own in owned for hung in (own, *(own[name] for name in _HUNG))]
        self._held = list(chain.from_iterable(map(_members, self._hung)))
        self._options = [one for one, _ in _options(module)]
        self._kept = list(chain.from_iterable(map(_members, self._options)))
        self._containers = [one for own in owned for one in own.values() if isinstance(one, dict | list | set)]
        self._lengths = [*map(len, self._hung), *map(len, self._options), *map(len, self._containers)]
        tensors = [*module.parameters(), *module.buffers()]
        self._tensors = tensors
        self._places = [tensor.data_ptr() for tensor in tensors]
        self._wanted = [tensor.requires_grad for tensor in tensors]


def _state(module: Any) -> list[Any]:
    """Options, weights and buffers, their places, what hangs where. A model that keeps something of each call for the
    script (features, an auxiliary loss) is never the same again."""
    found: list[Any] = []
    for child in module.modules():
        own = vars(child)
        found += [_mark(value) for value in own.values()]
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            if tensor is not None:
                found += (id(tensor), tensor.data_ptr(), tensor.requires_grad)
        found += map(id, own["_modules"].values())
    for holder, is_object in _options(module):
        # What else an object has (a trainer its results) is not the model's.
        found += [_mark(value) for value in _members(holder) if not is_object or _is_option(value)]
    return found


def _options(module: Any) -> Iterator[tuple[Any, bool]]:
    """Containers that modules have, and what they have in objects of their own: a configuration, say. Whether it is
    such an object's is said, too."""
    known: set[int] = set()
    left = [
        (value, 0) for child in module.modules() for name, value in vars(child).items() if name not in _EVERY
    ]  # fmt: skip
    while left:
        value, depth = left.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        holder = _holder(value, depth)
        if holder is None or len(holder) > _MOST_MEMBERS:
            continue
        if not isinstance(holder, tuple):  # its members stay what they are
            yield holder, holder is not value
        if depth < _DEEPEST:
            left += [
                (member, depth + 1) for member in _members(holder) if isinstance(member, dict | list | tuple | set)
            ]


def _holder(value: Any, depth: int) -> Any:
    """What has the members of a value; None where it is not looked into."""
    if isinstance(value, dict | list | tuple | set):
        return value
    others = (torch.nn.Module, torch.Tensor, type, FunctionType, MethodType, ModuleType)
    own = None if depth or isinstance(value, others) else getattr(value, "__dict__", None)
    return own if isinstance(own, dict) else None


def _members(holder: Any) -> Any:
    return holder.values() if isinstance(holder, dict) else holder


def _is_option(value: Any) -> bool:
    return type(value) in PLAIN or isinstance(value, dict | list | tuple | set)


def _mark(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    return len(value) if isinstance(value, dict | list | set) else id(value)
