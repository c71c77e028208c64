"""fulltilt: PyTorch training at the speed of its GPU.

The names below are the whole public surface; each room holds more for those who look.
They are imported on first use, so that `import fulltilt` costs nothing and needs no GPU, no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.assist import AsyncDataProcessor as AsyncDataProcessor
    from fulltilt.assist import CPUAssistedTraining as CPUAssistedTraining
    from fulltilt.augment import GPUAugmentation as GPUAugmentation
    from fulltilt.augment import MinimalGPUAugmentation as MinimalGPUAugmentation
    from fulltilt.augment import ProgressiveAugmentation as ProgressiveAugmentation
    from fulltilt.augment import StrongGPUAugmentation as StrongGPUAugmentation
    from fulltilt.errors import FulltiltError as FulltiltError
    from fulltilt.train import HybridPrecisionTrainer as HybridPrecisionTrainer
    from fulltilt.train import Trainer as Trainer
    from fulltilt.tune import get_optimal_batch_size as get_optimal_batch_size

__version__ = "0.1.0"

_HOMES = {
    "AsyncDataProcessor": "assist",
    "CPUAssistedTraining": "assist",
    "FulltiltError": "errors",
    "GPUAugmentation": "augment",
    "HybridPrecisionTrainer": "train",
    "MinimalGPUAugmentation": "augment",
    "ProgressiveAugmentation": "augment",
    "StrongGPUAugmentation": "augment",
    "Trainer": "train",
    "get_optimal_batch_size": "tune",
}

__all__ = [
    "AsyncDataProcessor",
    "CPUAssistedTraining",
    "FulltiltError",
    "GPUAugmentation",
    "HybridPrecisionTrainer",
    "MinimalGPUAugmentation",
    "ProgressiveAugmentation",
    "StrongGPUAugmentation",
    "Trainer",
    "__version__",
    "get_optimal_batch_size",
]

__getattr__ = on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
