"""Put functions in others' places, and know which: a script's process keeps them for good, a benchmark compares.

They are never taken out while a script runs: whoever has kept a reference can't be told, and compiled code guards on
what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_done: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
"""What puts each in, and what takes it out again."""


def put(owner: Any, name: str, function: Any) -> None:
    """`owner.name` is `function` from now on."""
    if isinstance(function, FunctionType) and isinstance(owner, ModuleType | type):
        # Under this name pickle finds it again, here and where we are not.
        within = isinstance(owner, ModuleType)
        function.__module__ = owner.__name__ if within else owner.__module__
        function.__qualname__ = name if within else f"{owner.__qualname__}.{name}"
    missing = object()
    before = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)

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
