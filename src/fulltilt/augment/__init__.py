"""Draws → matrices → one kernel: whole batches augmented on the device.

settings.py   what is asked for, checked            layout.py     where each number stands
draws.py      (seed, epoch, index) → rows           philox.py     the generator behind them
kernels/      rows → pixels, on a GPU               reference.py  the same in torch
batch.py      any input as one form                 spec.py       one call, apart from its tensors
engine.py     draws, then the pass                  op.py         the same as one operator for torch.compile
module.py     the public modules                    points.py     boxes and key points
followers.py  Kornia and others, afterwards         mix.py        two samples made into one, with soft labels
keyed.py      the state that all of them draw by    beta.py       λ for mix.py, without rejection
config.py     options from a YAML file
preview.py    what settings do, as a picture, out of pictures.py (files), effects.py (each setting alone, in words),
              overlay.py (masks) and sheet.py (the grid)
"""

from fulltilt.augment.batch import Ragged
from fulltilt.augment.mix import CutMix, Mixup, MixupOrCutMix
from fulltilt.augment.module import (
    GPUAugmentation,
    MinimalGPUAugmentation,
    ProgressiveAugmentation,
    StrongGPUAugmentation,
)
from fulltilt.augment.settings import Settings

__all__ = [
    "CutMix",
    "GPUAugmentation",
    "MinimalGPUAugmentation",
    "Mixup",
    "MixupOrCutMix",
    "ProgressiveAugmentation",
    "Ragged",
    "Settings",
    "StrongGPUAugmentation",
]
