"""Put functions in others' places, and know which: a script's process keeps them for good, a benchmark compares.

They are never taken out while a script runs: whoever has kept a reference can't be told, and compiled code guards on
what it has seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_done: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
"""What puts each in, and what takes it out again."""


class Unbound:
    """A function in the place of one that is not Python's: as an attribute of a class it is no method either.

    Each has a class of its own, whose `__call__` is the function itself: that is called faster than one that hands its
    arguments on. No `functools.partial`: dynamo looks into it, and does not find the builtin that it knows.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance` asks for it, and so does dynamo
        before = vars(self)["__wrapped__"]
        return type(self) if isinstance(before, type) else before.__class__

    def __reduce__(self) -> Any:
        return vars(self)["__qualname__"]  # pickle looks it up, and copies are itself

    def __repr__(self) -> str:
        return repr(vars(self)["__wrapped__"])


def _unbound(function: FunctionType, before: Any) -> Unbound:
    """`function` in the place of `before`."""
    made: Any = type(function.__name__, (Unbound,), {"__call__": staticmethod(function)})()
    functools.update_wrapper(made, function, updated=())
    made.__wrapped__ = before
    made.__self__ = getattr(before, "__self__", None)
    return made  # type: ignore[no-any-return]


def _is_bound(function: Any) -> bool:
    """As an attribute of a class, to its object."""
    return hasattr(type(function), "__get__")


def put(owner: Any, name: str, function: Any, *, by_its_name: bool = True) -> None:
    """`owner.name` is `function` from now on, and goes by that name.

    So pickle finds it again, here and where we are not, and dynamo takes it for what it knows by that name. Where it
    should see what the function does, that keeps a name of its own, as whatever is no function does anyway.
    """
    stands_in = by_its_name and isinstance(function, FunctionType)
    if stands_in and isinstance(owner, ModuleType | type):
        within = isinstance(owner, ModuleType)
        function.__module__ = owner.__name__ if within else owner.__module__
        function.__qualname__ = name if within else f"{owner.__qualname__}.{name}"
    missing = object()
    before = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)
    if stands_in and isinstance(owner, ModuleType) and callable(before):
        function = function if _is_bound(before) else _unbound(function, before)

    def take_out() -> None:
        if before is missing:
            delattr(owner, name)  # a class that inherited it
        else:
            setattr(owner, name, before)

    _do(lambda: setattr(owner, name, function), take_out)


def register(add: Callable[[], Any]) -> None:
    """A hook of torch's own, whose handle takes it out."""
    handles: list[Any] = []
    _do(lambda: handles.append(add()), lambda: handles.pop().remove())


def take_all_out() -> None:
    for _, out in reversed(_done):
        out()


def put_all_in() -> None:
    for put_in, _ in _done:
        put_in()


def _do(put_in: Callable[[], Any], take_out: Callable[[], Any]) -> None:
    put_in()
    _done.append((put_in, take_out))
