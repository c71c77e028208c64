"""What the processes of a run tell each other about a step. Alone, nothing is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from fulltilt.machine import ranks
from fulltilt.machine.resting import rest_at_exit

_AS_EVER = nullcontext()


class Ranks:
    """This process among the others."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.rank, self.world = ranks.rank(), ranks.world()
        self.several = self.world > 1
        if self.several:
            rest_at_exit()

    def largest(self, value: float) -> float:
        """The largest of all ranks' values. Waits for them."""
        if not self.several:
            return value
        told = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return float(told)

    def all_agree(self, answer: bool) -> bool:
        return self.largest(0.0 if answer else 1.0) == 0.0

    def any_problem(self, problem: str | None) -> str | None:
        """This rank's problem, or that another has one."""
        return problem if self.all_agree(problem is None) else problem or "on another rank"

    def reduce(self, parameters: Sequence[Tensor]) -> None:
        """Gradients averaged over the ranks, as the wrapper would have done while they were computed."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        used = torch.tensor(
            [parameter.grad is not None for parameter in trained], dtype=torch.int8, device=self._device
        )
        dist.all_reduce(used, dist.ReduceOp.MAX)
        for parameter, by_any in zip(trained, used.tolist(), strict=True):
            if by_any:  # the others keep none: zeros would let weight decay act on them
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad /= self.world
                dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)

    def quiet(self, forward_model: Callable[..., Any], quiet: bool) -> AbstractContextManager[Any]:
        """No gradients reduced inside, where a later backward does it for all."""
        if not quiet or not self.several:
            return _AS_EVER
        no_sync = getattr(forward_model, "no_sync", None)  # DistributedDataParallel
        if no_sync is not None:
            return cast("AbstractContextManager[Any]", no_sync())
        set_sync = getattr(forward_model, "set_requires_gradient_sync", None)  # fully_shard
        return _AS_EVER if set_sync is None else _switched_off(set_sync)


@contextmanager
def _switched_off(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(False)
    try:
        yield
    finally:
        switch(True)
