"""Where the ranks of a run bring their counts together. Alone, nothing is said."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fulltilt.machine.ranks import several
from fulltilt.machine.resting import rest_at_exit


def where_ranks_meet(device: torch.device) -> torch.device:
    """The CPU, or the GPU with a group that knows nothing else."""
    cpu = torch.device("cpu")
    if not several() or device.type == "cpu":
        return cpu
    return cpu if "cpu:" in str(dist.get_backend_config()) else device


def any_failed(device: torch.device, *, failed: bool) -> bool:
    """Whether this rank or another one has; waits for the others' word."""
    if not several():
        return failed
    rest_at_exit()
    told = torch.tensor(float(failed), device=device)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return bool(told)
