"""Everything that a step changes, taken and put back bit for bit.

Put back in place wherever the tensor is still there: CUDA graphs and optimizers hold addresses.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Rng:
    """Random number generators of Python, NumPy, torch, and the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = host_rng()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        python, arrays, tensors = self._host
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(tensors)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


class DeviceRng:
    """The device's own generator, which its dropout draws from: cheap enough for every step."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.default_generator
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generator = torch.cuda.default_generators[index]
        self._state = self._generator.get_state()

    def take(self) -> None:
        self._state = self._generator.get_state()

    def restore(self) -> None:
        self._generator.set_state(self._state)


def host_rng() -> tuple[Any, Any, Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def same_host_rng(a: tuple[Any, Any, Tensor], b: tuple[Any, Any, Tensor]) -> bool:
    """Whether nothing was drawn on the host between the two."""
    same_arrays = a[1][0] == b[1][0] and np.array_equal(a[1][1], b[1][1]) and a[1][2:] == b[1][2:]
    return a[0] == b[0] and same_arrays and torch.equal(a[2], b[2])


class Snapshot:
    """Weights, buffers, gradients, plain attributes of modules, optimizers, further tensors, and the generators."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: torch.device,
        *,
        more: Iterable[Tensor] = (),
        scaler: torch.amp.GradScaler | None = None,
        on_host: bool = False,
    ) -> None:
        """`on_host` keeps the copies in RAM, where they take nothing from what is measured on the device."""
        self._scaler, self._scaling = scaler, None if scaler is None else scaler.state_dict()
        self._optimizers = list(optimizers)
        tensors = [*model.parameters(), *more]
        keep = _on_host if on_host else _keeper([*tensors, *model.buffers()])
        self._tensors = [(tensor, keep(tensor)) for tensor in tensors]
        # By name: a change of memory format makes new buffers, where weights stay the same objects.
        self._buffers = [
            (module, name, keep(buffer))
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        self._grads = [(p, None if p.grad is None else keep(p.grad)) for p in model.parameters()]
        self._states = [_copied(dict(optimizer.state), keep) for optimizer in self._optimizers]
        self._options = [
            [_copied({k: v for k, v in group.items() if k != "params"}, keep) for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]
        self._attributes = plain_attributes(model)
        self._rng = Rng(device)

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, saved in self._tensors:
            tensor.copy_(saved)
        for module, name, saved in self._buffers:
            module.get_buffer(name).copy_(saved)
        for parameter, grad in self._grads:
            parameter.grad = None if grad is None else torch.empty_like(parameter).copy_(grad)
        for optimizer, states, options in zip(self._optimizers, self._states, self._options, strict=True):
            for gone in [parameter for parameter in optimizer.state if parameter not in states]:
                del optimizer.state[gone]
            for parameter, saved_state in states.items():
                _put_back(optimizer.state[parameter], saved_state)
            for group, saved_options in zip(optimizer.param_groups, options, strict=True):
                _put_back(group, saved_options, also="params")
        for module, names in self._attributes.items():
            vars(module).update(names)
        if self._scaler is not None and self._scaling:
            self._scaler.load_state_dict(self._scaling)
        self._rng.restore()


def plain_attributes(model: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """Numbers, flags and words that modules hold: a model that counts its own steps holds one that moves."""
    return {
        module: {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float | str)}
        for module in model.modules()
    }


def _keeper(tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Copies on the device where there is room for one of everything twice over, else on the host."""
    first = next((tensor for tensor in tensors if tensor.is_cuda), None)
    if first is not None:
        free, _ = torch.cuda.mem_get_info(first.device)
        # Optimizers hold up to two tensors for each weight; half as much again is left to the trials.
        if free < 4.5 * sum(tensor.numel() * tensor.element_size() for tensor in tensors):
            return _on_host
    return _where_it_is


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _where_it_is(tensor: Tensor) -> Tensor:
    try:
        return tensor.detach().clone()
    except torch.OutOfMemoryError:  # the process may be allowed less than the device has
        return _on_host(tensor)


def _copied(value: Any, keep: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return keep(value)
    if isinstance(value, dict):
        return {key: _copied(part, keep) for key, part in value.items()}
    return copy.deepcopy(value)


def _put_back(now: dict[str, Any], saved: dict[str, Any], *, also: str | None = None) -> None:
    for gone in [key for key in now if key not in saved and key != also]:
        del now[gone]
    for key, value in saved.items():
        there = now.get(key)
        if not isinstance(value, Tensor):
            now[key] = copy.deepcopy(value)
        elif isinstance(there, Tensor) and there.shape == value.shape and there.dtype == value.dtype:
            there.copy_(value)
        else:
            now[key] = value.clone()
