"""Gloo groups beside the default one: what one thread says must not come between the collectives of another."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fulltilt.machine.resting import rest_at_exit

_made: dict[str, tuple[Any, Any]] = {}


def own_group(purpose: str) -> Any:
    """The group of all ranks for one purpose; made by all of them, on first use."""
    default = dist.group.WORLD
    if purpose not in _made or _made[purpose][0] is not default:
        rest_at_exit()
        _made[purpose] = (default, dist.new_group(backend="gloo"))
    return _made[purpose][1]


def forget() -> None:
    """Let go of them, before the default one is closed."""
    _made.clear()
