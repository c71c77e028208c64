"""Everything that trials touch, put back bit for bit: weights, buffers, optimizers, generators, switches, places."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.train.step.optim import like_weights
from fulltilt.train.step.snapshot import Rng, Snapshot

Buffers = dict[nn.Module, dict[str, Tensor | None]]


class Kept:
    """A user's model and optimizers, lent to trials on a device."""

    def __init__(self, parts: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._parts, self._optimizers = nn.ModuleList(parts), list(optimizers)
        self._homes = [(part, _home(part)) for part in parts]
        self._theirs = _buffers(self._parts)
        """The buffers themselves: moving a module makes new ones, which others that hold the old would not see."""
        self._notes = [_plain(optimizer) for optimizer in optimizers]
        """Such as a scheduler's whether its optimizer has stepped yet."""
        self._lent: tuple[Snapshot, Buffers] | None = None

    def lend(self, device: torch.device) -> None:
        """Everything to the device, and copies taken of it."""
        self._parts.to(device)
        for optimizer in self._optimizers:
            like_weights(optimizer)
        self._lent = Snapshot(self._parts, self._optimizers, device, on_host=True), _buffers(self._parts)

    @torch.no_grad()
    def put_back(self) -> None:
        if self._lent is not None:
            snapshot, placed = self._lent
            _set_buffers(placed)  # a module may have put others in their place
            snapshot.restore()
        for part, home in self._homes:
            if home is not None:
                part.to(home)
        for optimizer, notes in zip(self._optimizers, self._notes, strict=True):
            like_weights(optimizer)
            for new in _plain(optimizer).keys() - notes.keys():
                delattr(optimizer, new)
            vars(optimizer).update(notes)
        for module, buffers in self._theirs.items():
            for name, buffer in buffers.items():
                now = module._buffers[name]
                if buffer is not None and now is not None and now is not buffer:
                    buffer.copy_(now)
        _set_buffers(self._theirs)


class Switches:
    """Random number generators, and torch's process-wide settings that a step's precision changes."""

    def __init__(self, device: torch.device) -> None:
        self._rng = Rng(device)
        self._put_maths_back = keep_maths() if device.type == "cuda" else None

    def put_back(self) -> None:
        if self._put_maths_back is not None:
            self._put_maths_back()
        self._rng.restore()


def keep_maths() -> Callable[[], None]:
    """What puts torch's precision and its search for algorithms back as they are now.

    The step sets precision by torch's older names; asking by these fails where a script has used the newer ones, and
    some versions of torch warn of them.
    """
    cudnn: Any = torch.backends.cudnn
    benchmark = cudnn.benchmark
    newer = [(part, part.fp32_precision) for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    older: tuple[str, bool] | None = None
    with suppress(RuntimeError), warnings.catch_warnings(action="ignore"):
        older = torch.get_float32_matmul_precision(), cudnn.allow_tf32

    def put_back() -> None:
        with warnings.catch_warnings(action="ignore"):
            cudnn.benchmark = benchmark
            if older is not None:
                torch.set_float32_matmul_precision(older[0])
                cudnn.allow_tf32 = older[1]
            else:
                for part, precision in newer:
                    part.fp32_precision = precision

    return put_back


def _home(module: nn.Module) -> torch.device | None:
    tensor = next(iter([*module.parameters(), *module.buffers()]), None)
    return None if tensor is None else tensor.device


def _plain(optimizer: Optimizer) -> dict[str, Any]:
    return {key: value for key, value in vars(optimizer).items() if isinstance(value, bool | int | float | str)}


def _buffers(parts: nn.Module) -> Buffers:
    return {module: dict(module._buffers) for module in parts.modules() if module._buffers}


def _set_buffers(buffers: Buffers) -> None:
    for module, named in buffers.items():
        module._buffers.update(named)
