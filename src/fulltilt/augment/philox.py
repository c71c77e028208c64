"""A counter-based generator: the same words from the same counters, in any order, on any device.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which is also Triton's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor | int, Tensor | int]) -> list[Tensor]:
    """Four random words for each counter; all are 32-bit words held in int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return [c0, c1, c2, c3]


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 32 × 32 bit product, without leaving int64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def to_uniform(words: Tensor) -> Tensor:
    """The 24 high bits as a float32 in [0, 1): exact, so that every device has the same number."""
    return (words >> 8).to(torch.float32) * 2.0**-24


def sample_words(seed: int | Tensor, epoch: int | Tensor, index: Tensor, count: int, *, first_block: int = 0) -> Tensor:
    """`count` words for each sample: counter (index low, index high, epoch, block), key seed."""
    blocks = first_block + torch.arange(count // 4, device=index.device)
    shape = (len(index), len(blocks))
    counter = (
        (index & _LOW)[:, None].expand(shape),
        ((index >> 32) & _LOW)[:, None].expand(shape),
        (index.new_zeros(()) + (epoch & _LOW)).expand(shape),
        blocks.expand(shape),
    )
    return torch.stack(philox(counter, (seed & _LOW, (seed >> 32) & _LOW)), -1).reshape(len(index), count)
