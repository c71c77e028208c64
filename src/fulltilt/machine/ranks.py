"""Which of several processes this one is: in the process group, and as whoever started them told before there was one.

    torchrun ─ RANK, WORLD_SIZE … ─► told()      init_process_group() ─► rank(), world(), several()

torch is asked where it is imported already: without it there is no group.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def rank() -> int:
    """Of the process group; 0 without one."""
    group = _group()
    return 0 if group is None else int(group.get_rank())


def world() -> int:
    """Ranks in the process group; 1 without one."""
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def several() -> bool:
    """Whether the process group has others in it."""
    return world() > 1


def grouped() -> bool:
    """Whether there is a process group, if of one."""
    return _group() is not None


def told() -> tuple[int, int] | None:
    """Rank and world, as torchrun tells; None where nobody does."""
    return (_told("RANK", 0), told_world()) if "WORLD_SIZE" in os.environ else None


def told_world() -> int:
    """How many processes torchrun has started, on all machines."""
    return _told("WORLD_SIZE", 1)


def told_local_rank() -> int:
    """Which of this machine's."""
    return _told("LOCAL_RANK", 0)


def told_local_world() -> int:
    """How many of them are on this machine, and share its cores."""
    return max(1, _told("LOCAL_WORLD_SIZE", 1))


def _told(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise


def _group() -> Any:
    distributed = sys.modules.get("torch.distributed")
    there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if there else None
