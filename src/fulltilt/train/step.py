"""One training step: forward, loss, backward, clip, step; fast where that pays, and never waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.machine.decision import Decision
from fulltilt.train.roles import default_loss, split

Auto = Literal["auto"]


class StepResult(NamedTuple):
    """What a step gives back, on the device; reading a value waits for it."""

    loss: Tensor
    """Mean over the effective batch, 0-d, detached."""
    outputs: Any
    """What the model returned, detached."""


class HybridPrecisionTrainer:
    """A training step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        loss: Callable[[Any, Any], Tensor] | None = None,
        device: str | torch.device = "auto",
        precision: str = "auto",
        compile: bool | Auto = "auto",
        channels_last: bool | Auto = "auto",
        cuda_graph: bool | Auto = "auto",
        fused: bool | Auto = "auto",
        accumulate: int = 1,
        clip_norm: float | None = None,
        ema_decay: float | None = None,
        target: int | Auto = "auto",
        expected_steps: int | None = None,
    ) -> None:
        self.model = model
        self.forward_model: Callable[..., Any] = model
        self.optimizers: list[Optimizer] = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self.plan: dict[str, Decision[Any]] = {}
        self.stepped = False
        self._loss, self._target = loss, target
        self._accumulate, self._clip_norm, self._phase = accumulate, clip_norm, 0
        self._dtype = torch.bfloat16 if precision == "bf16" else None
        self.model.to(self.device)

    def train_step(self, *batch: Any) -> StepResult:
        """Forward, loss, backward; optimizers step every `accumulate` calls."""
        inputs, target = self._split(batch)
        loss, outputs = self._forward(inputs, target)
        (loss if self._accumulate == 1 else loss / self._accumulate).backward()  # type: ignore[no-untyped-call]
        self._phase += 1
        self.stepped = self._phase == self._accumulate
        if self.stepped:
            self._phase = 0
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return StepResult(loss.detach(), outputs.detach() if isinstance(outputs, Tensor) else outputs)

    @torch.no_grad()
    def eval_step(self, *batch: Any) -> StepResult:
        """Forward and loss, without gradients; eval mode is the caller's."""
        inputs, target = self._split(batch)
        return StepResult(*self._forward(inputs, target))

    def note_wait(self, seconds: float) -> None:
        """The loop waited so long for this batch."""

    def get_performance_stats(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers], "phase": self._phase}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._phase = state["phase"]

    def _split(self, batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        inputs, target = split(batch, self._target)
        return tuple(self._moved(part) for part in inputs), self._moved(target)

    def _moved(self, part: Any) -> Any:
        return part.to(self.device, non_blocking=True) if isinstance(part, Tensor) else part

    def _forward(self, inputs: tuple[Any, ...], target: Any) -> tuple[Tensor, Any]:
        context = nullcontext() if self._dtype is None else torch.autocast(self.device.type, self._dtype)
        with context:
            outputs = self.forward_model(*inputs)
            if self._loss is None:
                self._loss = default_loss(outputs, target)
            return self._loss(outputs, target), outputs
