"""Draws → matrices → one kernel: whole batches augmented on the device.

settings.py   what is asked for, checked            layout.py     where each number stands
draws.py      (seed, epoch, index) → rows           philox.py     the generator behind them
kernels/      rows → pixels, on a GPU               reference.py  the same in torch
batch.py      any input as one form                 spec.py       one call, apart from its tensors
engine.py     draws, then the pass                  gpu.py        launching it, prepared once per shape
op.py         the same as one torch operator        module.py     the public modules
keyed.py      the state that modules draw by        points.py     boxes and key points
followers.py  Kornia and others, afterwards         mix.py        two samples made into one, with soft labels
beta.py       λ for mix.py, without rejection       config.py     options from a YAML file
preview/      what settings do, as a picture
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
