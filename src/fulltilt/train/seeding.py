"""One seed for every generator that training may draw from."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Python, NumPy and torch on every device. The same on all ranks, for models have to begin alike."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def part_ways(rank: int) -> None:
    """From here on, draw other numbers than the other ranks do; rank 0 goes on as before."""
    if rank:
        random.seed(random.getrandbits(64) + rank)
        np.random.seed((np.random.randint(1 << 31) + rank) % (1 << 32))
        torch.manual_seed(torch.initial_seed() + rank)
