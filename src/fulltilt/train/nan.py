"""Losses on their way to the host, watched for NaN and infinity, without a step ever waiting for one.

    loss, loss, loss … ─ one stack, one copy ─► pinned memory ─ when its event has passed ─► values, in order

On the CPU a value can be read at once, so every step's is. On a GPU losses are gathered and copied out together; what
is found is a few dozen steps old then, but it is known exactly which step and batch it was. Of several processes'
losses the mean is taken before: a bad one of any rank is bad for all, and all act upon it at the same step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.train.ranks.together import mean_of_ranks
from fulltilt.train.step.optim import fill_momentum

GATHERED = 64
"""Losses copied out together: a copy costs the host about as much as launching three kernels."""
_LARGE = 1 << 20
"""Bytes. A loss may be a view into memory that holds the outputs, too: so much is not to be kept for it."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    losses: Tensor
    """On the device."""
    values: Tensor
    """On the host, once `arrived` has passed."""
    arrived: torch.cuda.Event | None
    buffers: list[Tensor]


class LossWatch:
    """Losses in, numbers out, later."""

    def __init__(self, device: torch.device, *, buffers: Iterable[Tensor] = (), together: bool = False) -> None:
        """
        Args:
            buffers: a model's running statistics, to be copied along with the losses (see `last_good`).
            together: losses are averaged over several processes, and all of them see each at the same step.
        """
        self._together = together
        self.last_good: list[Tensor] = []
        """The buffers at a moment up to which every loss was finite."""
        self._device, self._cuda = device, device.type == "cuda"
        self._buffers = list(buffers)
        self._gathered: list[Tensor] = []
        self._under_way: deque[_UnderWay] = deque()
        self._most = 1
        self._copies = False

    def add(self, loss: Tensor) -> bool:
        """Note a step's loss; True when it is worth looking at `take`."""
        self._gathered.append(loss.clone() if self._copies else loss)
        if len(self._gathered) < self._most:
            return False
        self.send()
        return True

    def send(self) -> None:
        """Begin to copy out what has been gathered."""
        if not self._gathered:
            return
        stacked = torch.stack(self._gathered).float()
        if self._together:
            mean_of_ranks(stacked)
        if self._cuda:  # few at first: a bad start is found early, and so is what a loss keeps alive
            self._copies = self._gathered[-1].untyped_storage().nbytes() > _LARGE
            self._most = min(2 * self._most, GATHERED)
        self._gathered.clear()
        buffers = [buffer.detach().clone() for buffer in self._buffers]
        if not self._cuda:
            self._under_way.append(_UnderWay(stacked, stacked, None, buffers))
            return
        values = torch.empty(len(stacked), dtype=stacked.dtype, pin_memory=True)
        values.copy_(stacked, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(self._device))  # another device's would have passed at once
        self._under_way.append(_UnderWay(stacked, values, arrived, buffers))

    def take(self, *, wait: bool = False) -> list[float]:
        """The losses that have arrived since last asked, in the order of their steps; with `wait`, all of them."""
        if wait:
            self.send()
        found: list[float] = []
        while self._under_way:
            first = self._under_way[0]
            if first.arrived is not None:
                if wait or (self._together and len(self._under_way) > 1):
                    first.arrived.synchronize()  # ranks must not differ; all but the newest have long arrived
                elif self._together or not first.arrived.query():  # type: ignore[no-untyped-call]
                    break
            self._under_way.popleft()
            values = first.values.tolist()
            found += values
            if self._buffers and all(map(math.isfinite, values)):
                self.last_good = first.buffers
        return found

    def pending(self) -> Tensor | None:
        """The losses that `take` has not given yet, on the device."""
        self.send()
        return torch.cat([part.losses for part in self._under_way]) if self._under_way else None

    def forget(self) -> None:
        """Drop what is under way: training goes back to before it."""
        self._gathered.clear()
        self._under_way.clear()


class UpdateGuard:
    """Policy `skip`: no update is made with gradients that are not finite, and none is waited for.

    Fused optimizers can be told on the device. For the others the host has to look at the gradients before each update,
    which on a GPU waits for them. Running statistics that a bad batch has spoilt are put back by `mend`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    @contextmanager
    def watching(self, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """While open, these optimizers' steps are guarded."""
        handles = [optimizer.register_step_pre_hook(self._before) for optimizer in optimizers]
        handles += [optimizer.register_step_post_hook(self._after) for optimizer in optimizers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def mend(self, last_good: Sequence[Tensor]) -> None:
        """Buffers that are no longer finite go back to how they last were."""
        with torch.no_grad():
            for buffer, good in zip(self.buffers, last_good, strict=False):
                if not bool(torch.isfinite(buffer).all()):
                    buffer.copy_(good)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if hasattr(optimizer, "found_inf"):
            return  # gradient scaling looks for itself
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        largest = nn.utils.get_total_norm([p.grad for p in parameters], norm_type=math.inf)
        whole = getattr(largest, "full_tensor", None)  # of gradients that are spread over ranks
        if whole is not None:
            largest = whole()
        if _is_fused(optimizer) and whole is None and fill_momentum(optimizer):
            optimizer.found_inf = (~torch.isfinite(largest)).float()  # type: ignore[attr-defined]
            optimizer._fulltilt_guarded = True  # type: ignore[attr-defined]
        elif not bool(torch.isfinite(largest)):
            for parameter in parameters:
                parameter.grad = None  # an optimizer passes over these, their state included

    @staticmethod
    def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG004
        if getattr(optimizer, "_fulltilt_guarded", False):
            del optimizer.found_inf, optimizer._fulltilt_guarded  # type: ignore[attr-defined]


def _is_fused(optimizer: Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)
