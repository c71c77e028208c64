"""Where a model lives, and whether its optimizers are its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fulltilt.errors import InputError
from fulltilt.machine.device import named_device
from fulltilt.train.step.optim import like_weights


def device_for(model: nn.Module, device: str | torch.device) -> torch.device:
    """The device to train on. "auto" is where the model is, and a GPU for a model on the CPU where there is one."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, found {type(model).__name__}")
    check_weights(model)
    found = {parameter.device for parameter in model.parameters()}
    if len(found) > 1:
        raise InputError(
            f"the model's weights are on several devices ({_names(found)}): move it to one with model.to()"
        )
    (home,) = found
    if home.type == "meta":
        raise InputError("the model's weights are on the meta device, without values: model.to_empty(device=…) first")
    wanted = named_device(device, home)
    if home.type != "cpu" and home != wanted:
        raise InputError(
            f"the model is on {home}, but device={str(device)!r}: move the model, or leave device at 'auto'"
        )
    return wanted


def check_weights(model: nn.Module) -> None:
    """Before an optimizer is made for them."""
    if next(model.parameters(), None) is None:
        raise InputError("the model has no weights: there is nothing to train")
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise InputError(
            f"the model's {lazy[0]} has no shape yet, as lazy layers have none before their first batch: call the "
            "model with a batch once, before its optimizer is made"
        )


def as_optimizers(given: Any) -> list[Optimizer]:
    """One or several, as a list."""
    if isinstance(given, Optimizer):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, str):
        found = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise InputError(
            f"optimizer is {found}; expected a torch.optim.Optimizer or a list of them, such as "
            "torch.optim.AdamW(model.parameters())"
        )
    return list(given)


def check_optimizers(optimizers: Sequence[Optimizer], model: nn.Module, loss: Any) -> None:
    if not optimizers:
        raise InputError("optimizer is an empty list: give at least one")
    own = set(model.parameters()) | (set(loss.parameters()) if isinstance(loss, nn.Module) else set())
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise InputError(
                f"optimizer must be a torch.optim.Optimizer or a list of them, found {type(optimizer).__name__}"
            )
        if type(optimizer).__name__ == "LBFGS":
            raise InputError(
                "LBFGS evaluates the loss several times in a step, which this step does not do; use another"
            )
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not any(parameter in own for parameter in held):
            raise InputError(
                f"none of the {len(held)} weights of {type(optimizer).__name__} belongs to this model: make it from "
                "model.parameters() of the same model object"
            )


def move(model: nn.Module, optimizers: Sequence[Optimizer], loss: Any, device: torch.device) -> None:
    """Model, the loss's own tensors, and optimizer state to the device; weights stay the same objects."""
    model.to(device)
    if isinstance(loss, nn.Module):
        loss.to(device)
    for optimizer in optimizers:
        like_weights(optimizer)


def _names(devices: set[torch.device]) -> str:
    return ", ".join(sorted(map(str, devices)))
