"""Beta(α, α) from one uniform number: no rejection, no loop, so a device never has to report back.

Samplers for Beta reject and try again, which a GPU can't do without branching and a CUDA graph can't do at all. Here
the quantile function is tabulated once, on the CPU in float64, and interpolated. What is tabulated matters: the
quantile q(u) goes like u^(1/α) at the ends, which no table follows. Over s = (2u)^(1/α) it is smooth, from q = 0 at
s = 0 to q = ½ at s = 1, and 1024 linear steps are within 1e-6 of it up to α = 5 (5e-5 at α = 100). The other half
follows by symmetry.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fulltilt.errors import InputError

ALPHA = (0.001, 100.0)
"""Beyond 100 all of the distribution falls into few steps of the table; below 0.001 it is 0 or 1 in float32."""
_STEPS = 1024
_NEWTON_STEPS = 12


def beta_table(alpha: float, *, name: str = "alpha") -> Tensor:
    """The quantiles of Beta(α, α) below ½ at s = 0, 1/1024, …, 1, in float32."""
    least, most = ALPHA
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not least <= alpha <= most:
        raise InputError(f"{name}={alpha!r} must be a number from {least:g} to {most:g}")
    log_s = torch.log(torch.arange(1, _STEPS, dtype=torch.float64) / _STEPS)
    half = _log_incomplete(torch.tensor([0.5], dtype=torch.float64), alpha)
    # Newton on log s over log q, which is nearly straight with slope 1 at the small end.
    log_q = torch.minimum(log_s + math.log(0.5), torch.tensor(math.log(0.5)))
    for _ in range(_NEWTON_STEPS):
        q = torch.exp(log_q)
        log_b = _log_incomplete(q, alpha)
        slope = torch.exp(alpha * log_q + (alpha - 1.0) * torch.log1p(-q) - log_b) / alpha
        log_q = torch.clamp(log_q - ((log_b - half) / alpha - log_s) / slope, max=math.log(0.5))
    return torch.cat([torch.zeros(1), torch.exp(log_q).float(), torch.full((1,), 0.5)])


def look_up(table: Tensor, uniform: Tensor, alpha: float) -> Tensor:
    """Values of Beta(α, α) for uniforms in [0, 1), float32, on the table's device."""
    upper = uniform >= 0.5
    twice = torch.where(upper, 2.0 - 2.0 * uniform, 2.0 * uniform)  # exact: uniforms are multiples of 2^-24
    at = torch.pow(twice, 1.0 / alpha) * _STEPS
    below = torch.clamp(torch.floor(at), max=_STEPS - 1)
    low = below.to(torch.int64)
    value = table[low] + (table[low + 1] - table[low]) * (at - below)
    return torch.where(upper, 1.0 - value, value)


def _log_incomplete(x: Tensor, alpha: float) -> Tensor:
    """log of ∫₀ˣ (t(1−t))^(α−1) dt, 0 < x ≤ ½: x^α (1−x)^α / α · ₂F₁(2α, 1; α+1; x), a series of positive terms."""
    term, total, n = torch.ones_like(x), torch.ones_like(x), 0
    while float((term / total).max()) > 1e-17:
        term = term * x * ((2.0 * alpha + n) / (alpha + 1.0 + n))
        total, n = total + term, n + 1
    return alpha * (torch.log(x) + torch.log1p(-x)) - math.log(alpha) + torch.log(total)
