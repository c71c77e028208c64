"""One seed for every generator that training may draw from."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Python, NumPy and torch on every device. The same on all ranks: what must differ there is made to by the feed."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
