"""Tasks that go by a name: those that ship, and the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fulltilt.assist.features import extract_features
from fulltilt.assist.metrics import compute_metrics
from fulltilt.errors import InputError
from fulltilt.nested import map_parts


class Registry:
    """Names and what they stand for."""

    def __init__(self, preprocess: Callable[..., Any] | None = None) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self.register("compute_metrics", compute_metrics)
        self.register("data_preprocessing", as_tensors if preprocess is None else preprocess)
        self.register("extract_features", extract_features)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._functions))

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Have a name stand for a function; a name that is known is given the new one."""
        named_function(name, function)
        self._functions[name] = function

    def find(self, name: str) -> Callable[..., Any]:
        try:
            return self._functions[name]
        except KeyError:
            raise InputError(
                f"there is no task {name!r}; there are {', '.join(self.names)}. "
                "Add your own with register(name, function)"
            ) from None


def named_function(name: str, function: Callable[..., Any]) -> None:
    """Raise InputError if either is not what it should be."""
    if not isinstance(name, str) or not name:
        raise InputError(f"a task's name is {name!r}; it has to be a text that is not empty")
    if not callable(function):
        raise InputError(f"task {name!r} is {function!r}; it has to be something that can be called")


def as_tensors(batch: Any) -> Any:
    """Preprocessing where the user has given none: arrays of numbers become tensors, tensors contiguous."""
    return map_parts((np.ndarray, torch.Tensor), _as_tensor, batch)


def _as_tensor(part: np.ndarray[Any, Any] | torch.Tensor) -> Any:
    if isinstance(part, torch.Tensor):
        return part.contiguous()
    return torch.from_numpy(np.ascontiguousarray(part)) if part.dtype.kind in "biufc" else part
