"""How images lie in memory, as others see it."""

from __future__ import annotations

import torch
from torch import Tensor


def turned_back(tensor: Tensor) -> Tensor:
    """What a model gave out with its channels last, as it would have without: a `view(-1)`, in somebody's metric, takes
    no other."""
    turned = tensor.dim() == 4 and not tensor.is_contiguous()
    return tensor.contiguous() if turned and tensor.is_contiguous(memory_format=torch.channels_last) else tensor
