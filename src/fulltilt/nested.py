"""What lies in tuples, lists, named tuples and mappings, however deep: a batch's tensors, above all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Part = TypeVar("Part")


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """As `map_parts`, of the tensors."""
    from torch import Tensor

    return map_parts(Tensor, change, value)


def map_parts(kind: type[Part] | tuple[type[Any], ...], change: Callable[[Part], Any], value: Any) -> Any:
    """The same structure with everything of a kind changed. Containers of nothing of the kind are the same objects."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [map_parts(kind, change, part) for part in value]
        return refilled(value, parts) if _has(kind, value, parts) else value
    if isinstance(value, Mapping):
        found = {key: map_parts(kind, change, part) for key, part in value.items()}
        return refilled(value, found) if _has(kind, value.values(), found.values()) else value
    return value


def refilled(container: Any, parts: Any) -> Any:
    """A container like another, with a list of parts, or with a dictionary of them."""
    if not isinstance(container, Mapping):
        if not hasattr(container, "_fields"):
            return type(container)(parts)
        if type(container).__name__ == "PackedSequence":  # torch's, which takes its steps' sizes on the host alone
            parts = [parts[0], container.batch_sizes, *parts[2:]]
        return type(container)(*parts)
    if type(container) is dict:
        return parts
    if not isinstance(container, MutableMapping):
        return type(container)(parts)  # type: ignore[call-arg]
    like = copy.copy(container)  # keeps what a constructor would have to be told: a default, say
    for key, part in parts.items():  # `update` is what output classes of model libraries refuse
        like[key] = part
    return like


def _has(kind: type[Any] | tuple[type[Any], ...], before: Iterable[Any], after: Iterable[Any]) -> bool:
    return any(new is not old or isinstance(old, kind) for old, new in zip(before, after, strict=True))
