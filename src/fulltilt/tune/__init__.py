"""Measured choices, made into a plan.

batch_size.py   get_optimal_batch_size: the search, from the outside
  policy.py       which size to try next, which one to take (pure)
  memory.py       how much there is, how much a step took: GPU, or RAM
  bench.py        a size run: whole steps, peak memory, samples/s
  keeping.py      everything that trials touch, put back bit for bit
  result.py       BatchSize: a number that knows how it came about, and its table
  showing.py      the progress bar
configured.py   `batch_size: auto` of a configuration file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.tune.batch_size import get_optimal_batch_size as get_optimal_batch_size
    from fulltilt.tune.configured import settle_batch_size as settle_batch_size
    from fulltilt.tune.result import BatchSize as BatchSize

__all__ = ["BatchSize", "get_optimal_batch_size", "settle_batch_size"]

# Imported on first use, as everywhere: torch is heavy.
_HOMES = {"BatchSize": "result", "get_optimal_batch_size": "batch_size", "settle_batch_size": "configured"}

__getattr__ = on_first_use(__name__, _HOMES)
