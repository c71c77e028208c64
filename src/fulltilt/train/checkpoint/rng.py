"""The random states of Python, NumPy, torch and the GPU, taken and put back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fulltilt.errors import CheckpointError


def take() -> dict[str, Any]:
    """The states as they are now. Of GPUs the current one's: under torchrun each process has one."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=True),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if _gpu_is_used() else None,
    }


def _gpu_is_used() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def restore(states: Mapping[str, Any]) -> None:
    """Put back what `take` gave. A GPU's state is left out where there is none."""
    missing = [key for key in ("python", "numpy", "torch", "cuda") if key not in states]
    if missing:
        raise CheckpointError(f"the random states lack {', '.join(missing)}; they were not taken by this version")
    try:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the random states can't be put back ({error})") from None
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
