"""A model of which each process has a part (FSDP2's `fully_shard`), with its optimizers and its saved state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.errors import InputError

_UNIT_BYTES = 4 << 20
"""Smaller parts of a model are not sent on their own: a message has to be worth its latency."""


def shard(model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device) -> None:
    """Spread the weights over the processes, in place; the optimizers go on with the parts.

    Blocks of a model (what lists and sequences in it hold) are gathered and reduced on their own, each while its
    neighbour computes.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if any(optimizer.state for optimizer in optimizers):
        raise InputError("the optimizer has stepped already: with parallel: fsdp give one that has not, then resume()")
    _same_start(model, device)
    whole = dict(model.named_parameters())
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    parts = dict(model.named_parameters())
    after = {id(parameter): parts[name] for name, parameter in whole.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [after.get(id(parameter), parameter) for parameter in group["params"]]


def is_sharded(model: nn.Module) -> bool:
    """Whether each process has only a part of its weights."""
    return hasattr(model, "set_requires_gradient_sync")


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model that are worth a message of their own, inner ones first."""
    homes: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            homes[id(parameter)] = homes.get(id(parameter), 0) + 1
    held = [
        child
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for child in module.children()
        if not isinstance(child, nn.ModuleList)  # has no forward to gather before
    ]
    for child in reversed(list(dict.fromkeys(held))):
        own = list(child.parameters())
        # Tied weights belong to the whole model: two blocks can't both send them.
        is_large = sum(parameter.nbytes for parameter in own) >= _UNIT_BYTES
        if is_large and all(homes[id(parameter)] == 1 for parameter in own):
            yield child


@torch.no_grad()
def begin_states(optimizers: Sequence[Optimizer]) -> None:
    """Have optimizers make their state, so that a saved one can be read into its parts. Values don't matter."""
    for optimizer in optimizers:
        if optimizer.state:
            continue
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        rates = [group["lr"] for group in optimizer.param_groups]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)


def placed_like(value: Any, like: Tensor) -> Any:
    """A whole tensor as this process's part of it, where `like` is one."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def spread(state: dict[str, Any], model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """In a loaded state, cut whatever came whole into parts as the model has them."""
    own = model.state_dict()
    saved, trainer = state["model"], state["trainer"]
    for name, value in saved.items():
        saved[name] = placed_like(value, own[name])
    parameters = dict(model.named_parameters())
    for kind in ("ema", "grads"):
        for name, value in trainer.get(kind, {}).items():
            trainer[kind][name] = placed_like(value, parameters[name])
    for optimizer, held in zip(optimizers, trainer["optimizers"], strict=False):
        order = itertools.chain.from_iterable(group["params"] for group in held["param_groups"])
        ours = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
        for number, parameter in zip(order, ours, strict=False):
            each = held["state"].get(number, {})
            for key, value in each.items():
                each[key] = placed_like(value, parameter)


@torch.no_grad()
def _same_start(model: nn.Module, device: torch.device) -> None:
    """Rank 0's weights and buffers for all; one by one, for the whole may not fit the device."""
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        told = tensor.detach().to(device)
        dist.broadcast(told, 0)
        tensor.copy_(told)
