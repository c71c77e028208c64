"""Things that a configuration names as `package.module:name`, found and called."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fulltilt.errors import FulltiltError, InputError

_beside: list[str] = []
"""Folders of configuration files."""


def is_reference(name: str) -> bool:
    """Whether it has the form of one."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def look_beside(file: Path) -> None:
    """From now on modules are looked for beside this file first, as beside a script, then in the working directory.

    In processes that are started later, too: forked or spawned, they get this one's `sys.path`.
    """
    folder = str(file.resolve().parent)
    _look_here()
    if folder != sys.path[0]:
        sys.path.insert(0, folder)
    if folder not in _beside:
        _beside.append(folder)


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def found(path: str, reference: str) -> Callable[..., Any]:
    """What `package.module:name` refers to; modules in the working directory are found, too."""
    module_name, _, attribute = reference.partition(":")
    _look_here()
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # something that the module itself imports: its traceback says more than we could
        looked = " and ".join(dict.fromkeys([*_beside, os.getcwd()]))
        raise InputError(f"{path}: there is no module {module_name!r} (looked in {looked}, too)") from None
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, dir(value), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"{path}: {module_name} has no {attribute!r}{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{path}: {reference} is {type(value).__name__}; expected something that can be called")
    return value  # type: ignore[no-any-return]


def called(path: str, make: Callable[..., Any], args: Mapping[str, Any], *first: Any) -> Any:
    """Arguments that don't fit are the configuration's fault, and named as such."""
    try:
        return make(*first, **args)
    except FulltiltError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:
        raise failed(path, make, args, error) from error


def failed(path: str, make: Callable[..., Any], args: Mapping[str, Any], error: Exception) -> InputError:
    """A call that can't be made."""
    shown = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return InputError(f"{path}: {getattr(make, '__name__', make)}({shown}) failed: {error}")
