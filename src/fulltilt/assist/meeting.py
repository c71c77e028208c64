"""Where the ranks of a run bring their counts together. Alone, nothing is said."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fulltilt.machine.ranks import several

_last_work: list[Any] = []


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
    told = torch.tensor(float(failed), device=device)
    work: Any = dist.all_reduce(told, dist.ReduceOp.MAX, async_op=True)
    work.wait()
    _last_work[:] = [work]  # gloo's thread must not be the last to hold it, in a program that ends with the error now
    return bool(told)
