"""Which weights stand behind a tensor: those that a backward from it would give gradients to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fulltilt.launch.apply.tried import Refused


def weights_behind(end: Tensor, weights: Sequence[Tensor]) -> frozenset[int]:
    """Their places among `weights`. Refused where there are others: a graph would leave those without gradients."""
    places = {id(weight): place for place, weight in enumerate(weights)}
    found: set[int] = set()
    known: set[Any] = set()
    left: list[Any] = [end.grad_fn]
    if end.grad_fn is None:
        return frozenset((_place(end, places),))
    while left:
        node = left.pop()
        if node is None or node in known:
            continue
        known.add(node)
        variable = getattr(node, "variable", None)  # where a gradient ends
        if variable is not None:
            found.add(_place(variable, places))
        left += [inner for inner, _ in node.next_functions]
    return frozenset(found)


def _place(weight: Tensor, places: dict[int, int]) -> int:
    if id(weight) not in places:
        raise Refused("it trains weights that are not among its parameters")
    return places[id(weight)]
