"""A user's optimizers, changed in place: moved, fused, laid out like their weights. Their state's values stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fulltilt.errors import InputError


def why_not_fused(optimizer: Optimizer) -> str | None:
    """None when the optimizer can take its step in one kernel."""
    name = type(optimizer).__name__
    if "fused" not in optimizer.defaults:
        return f"{name} has no fused form"
    if isinstance(optimizer, torch.optim.Adagrad) and any(
        parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"]
    ):
        return "Adagrad has no fused form on a GPU"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return f"{name} was made with differentiable=True"
        if group.get("momentum") and group.get("dampening"):  # see `fill_momentum`
            return f"{name} has dampening, which each weight's first step leaves out"
        if not all(torch.is_floating_point(parameter) for parameter in group["params"]):
            return f"{name} has parameters that are not floating-point"
    return None


class Fusing:
    """Switches one optimizer between the way it was made and one kernel per step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._made = [(group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
        self.always = bool(self._made) and all(fused for fused, _ in self._made)
        """It was made fused, and stays so."""

    def set(self, fused: bool) -> None:
        if self.always or why_not_fused(self._optimizer) is not None:
            return
        groups = self._optimizer.param_groups
        made = self._made + [(None, None)] * (len(groups) - len(self._made))  # groups added since
        for group, (was_fused, was_foreach) in zip(groups, made, strict=True):
            group["fused"], group["foreach"] = (True, False) if fused else (was_fused, was_foreach)
            capturable = bool(group.get("capturable"))
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter)
                if state and isinstance(state.get("step"), Tensor):
                    # Fused kernels count on the device, the others on the host, where that needs no kernel.
                    where = parameter.device if fused or capturable else torch.device("cpu")
                    state["step"] = state["step"].to(where, torch.float32)
        # What the optimizer's constructor sets: with it, fp16's overflow check stays on the device.
        self._optimizer._step_supports_amp_scaling = fused  # type: ignore[attr-defined]


def fill_momentum(optimizer: Optimizer) -> bool:
    """See that weights which have a gradient have their momentum; False where zeros would not do: it must not be fused.

    Fused SGD makes it for all weights in their first step, without values. One whose first gradient comes later (it was
    frozen, or in a branch not taken) fails there, and a first step that is skipped for overflow leaves garbage.
    Zeros do as well, unless there is dampening, which a weight's first step leaves out.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return True
    for group in optimizer.param_groups:
        if not group["momentum"]:
            continue
        if group["dampening"]:
            return False
        for parameter in group["params"]:
            if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return True


def like_weights(optimizer: Optimizer) -> None:
    """State on the device and in the memory format of its weights: kernels that take both at once need that."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape or value.dim() == 0:
                continue
            if value.device != parameter.device or value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def check_saved(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Whether a saved state can be this optimizer's, before any of it is taken over.

    torch loads another kind's options without a word and fails in the next step. Versions of one kind differ in that
    options were added, so only options missing *and* unknown say that it is another kind.
    """
    name = type(optimizer).__name__
    now, then = (
        [len(group["params"]) for group in groups] for groups in (optimizer.param_groups, saved["param_groups"])
    )
    if now != then:
        raise InputError(
            f"the saved state is of an optimizer with groups of {_listed(then)} weights, this {name} has "
            f"{_listed(now)}: make it as it was"
        )
    for group in saved["param_groups"]:
        options = set(group) - {"params", "initial_lr", "param_names"}
        missing, unknown = sorted(set(optimizer.defaults) - options), sorted(options - set(optimizer.defaults))
        if missing and unknown:
            raise InputError(
                f"the saved state is not of {name}: it lacks {', '.join(missing)} and has {', '.join(unknown)}; "
                "use the optimizer that it was saved with"
            )
    ours = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for place, (number, parameter) in enumerate(zip(numbers, ours, strict=True)):
        for key, value in saved["state"].get(number, {}).items():
            if key in _SHAPED and isinstance(value, Tensor) and value.shape != parameter.shape:
                raise InputError(
                    f"the saved state's {key} of weight {place} has the shape {tuple(value.shape)}, the weight of "
                    f"{name} {tuple(parameter.shape)}: give it the weights in the order that it was saved with"
                )


_SHAPED = frozenset({"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "grad_avg", "sum"})
"""State of torch's own optimizers that has the shape of its weight."""


def _listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts))


def fixed_options(optimizers: list[Optimizer]) -> list[Any]:
    """All options but the learning rate, to see whether one was changed."""
    return [
        value for optimizer in optimizers for group in optimizer.param_groups
        for key, value in group.items() if key not in _NOT_FIXED
    ]  # fmt: skip


_NOT_FIXED = frozenset({"params", "lr", "initial_lr", "capturable", "param_names"})


def rates(optimizers: list[Optimizer]) -> list[Any]:
    """Learning rates, group by group."""
    return [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
