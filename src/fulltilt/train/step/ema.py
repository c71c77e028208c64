"""Weights averaged over the steps, kept beside the model without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fulltilt.errors import InputError


class Ema:
    """average ← decay · average + (1 − decay) · weight, after every optimizer step, in one kernel for all weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0.0 < decay < 1.0:
            raise InputError(f"ema_decay={decay} must lie between 0 and 1, such as 0.999")
        self.decay = decay
        self._named = [(name, p) for name, p in model.named_parameters() if p.is_floating_point()]
        self._weights: list[Tensor] = [parameter for _, parameter in self._named]
        self.averages: list[Tensor] = [parameter.detach().clone() for parameter in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.averages, self._weights, 1.0 - self.decay)

    def follow_layout(self) -> None:
        """Averages in the memory format of their weights: one kernel takes both."""
        for average, weight in zip(self.averages, self._weights, strict=True):
            if average.stride() != weight.stride() or average.device != weight.device:
                average.data = torch.empty_like(weight.detach()).copy_(average)  # the same tensor to whoever holds it

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged weights, for evaluation; swapped in place, so addresses stay."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, weight in zip(self.averages, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: average for (name, _), average in zip(self._named, self.averages, strict=True)}

    def check(self, state: Mapping[str, Tensor]) -> None:
        """Whether saved averages are this model's."""
        names = {name for name, _ in self._named}
        if names != set(state):
            missing, unexpected = sorted(names - set(state)), sorted(set(state) - names)
            raise InputError(
                f"the saved averages are another model's: missing {missing[:8]}, unexpected {unexpected[:8]}"
            )

    @torch.no_grad()
    def begin(self) -> None:
        """Anew, from the weights as they are."""
        for average, weight in zip(self.averages, self._weights, strict=True):
            average.copy_(weight)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.check(state)
        for (name, _), average in zip(self._named, self.averages, strict=True):
            average.copy_(state[name])
