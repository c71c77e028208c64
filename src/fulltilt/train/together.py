"""What the loops of several processes have to agree on. Alone, nothing is said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from fulltilt.train.checkpoint.ranks import team


def several() -> bool:
    """Whether other processes train along."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def summed(values: Sequence[float], device: torch.device) -> list[float]:
    """Each value's sum over the ranks. Waits for them."""
    if not several():
        return list(values)
    told = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(told)
    return [float(value) for value in told.tolist()]


def largest(value: int) -> int:
    """The largest of all ranks' numbers. Asked through the host: the device goes on meanwhile."""
    return max(team().share(value))
