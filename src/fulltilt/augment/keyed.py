"""What every module that draws has in common: a state on the device, (seed, epoch, the next sample's number)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fulltilt.errors import InputError

RANK_APART = 1 << 40
"""Samples that a rank may count in an epoch."""


class Keyed(nn.Module):
    """Draws are keyed by (seed, epoch, index); the state moves with the module and is part of its `state_dict`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        if type(seed) is not int or not -(1 << 63) <= seed < 1 << 63:
            raise InputError(f"seed={seed!r} must be a whole number of 64 bits")
        self._state: Tensor
        self.register_buffer("_state", torch.tensor([seed, 0, 0]))

    def set_epoch(self, epoch: int) -> None:
        """Draw anew, counting samples from 0: another draw in each epoch, the same whenever that epoch is run."""
        if not isinstance(epoch, int) or epoch < 0:
            raise InputError(f"epoch={epoch!r} must be a whole number ≥ 0")
        self._state[1].fill_(epoch)
        self._state[2].fill_(0)

    def count_apart(self, rank: int) -> None:
        """Count samples from here on in numbers of this rank's own: alike ones are drawn alike."""
        self._state[2].remainder_(RANK_APART).add_(rank * RANK_APART)

    def _move(self, device: torch.device) -> None:
        """To where the images are. Also in a first call for validation the buffers stay tensors that can be written."""
        if self._state.device != device:
            with torch.inference_mode(False):
                self.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves to other devices; a change of dtype (`model.half()`) is not for these numbers."""
        for child in self.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse=False)  # type: ignore[no-any-return, no-untyped-call]


def keep_ranks_apart(function: object, rank: int) -> None:
    """Whatever draws in a module counts in this rank's numbers. What a plain function calls can't be known."""
    for part in function.modules() if isinstance(function, nn.Module) else ():
        if isinstance(part, Keyed):
            part.count_apart(rank)


def checked_index(index: Tensor | None, count: int, device: torch.device) -> Tensor | None:
    """The samples' numbers as the draws read them."""
    if index is None:
        return None
    if not isinstance(index, Tensor):
        raise InputError(f"index must be a tensor of {count} whole numbers, found {type(index).__name__}")
    if index.shape != (count,) or index.dtype.is_floating_point:
        raise InputError(
            f"index must be {count} whole numbers, one per sample; found {tuple(index.shape)} {index.dtype}"
        )
    return index.to(device=device, dtype=torch.int64, non_blocking=True)
