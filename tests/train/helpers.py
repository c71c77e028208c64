"""Small data and models for the loop's tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EXACT: dict[str, Any] = {"compile": False, "precision": "fp32"}
"""The plain loop's maths."""


def samples(count: int = 96, features: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, features, generator=draw)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def loader(count: int = 96, batch_size: int = 8, *, shuffle: bool = True) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples(count)), batch_size, shuffle=shuffle)


def network(features: int = 8) -> nn.Sequential:
    """With all that remembers: dropout draws, batch normalisation counts."""
    return nn.Sequential(
        nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)
    )  # fmt: skip


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
