"""One step fast and safe, then the loop around it.

step.py      HybridPrecisionTrainer: the step              loop.py      Trainer: fit, validate, resume
  roles.py     a batch's target, the loss, label checks      training.py    an epoch of training
  device.py    where the model lives                         validation.py  the held-out data
  engine.py    forward, loss, backward, optimizers           saving.py      when and what is saved
  precision.py fp32, tf32, bf16, fp16                        report.py      bar, lines, logs
  optim.py     a user's optimizers, changed in place         losses.py      losses that are no numbers
  choose.py    what to try, what to keep (pure)            checkpoint/  files that survive anything
  trials.py    the trials, on the real model               config.py    the YAML
  snapshot.py  state taken and put back, bit for bit
  graphed.py   the whole step as a CUDA graph
  micro.py     micro-batches; out of memory
  ranks.py     what processes tell each other
  ema.py       averaged weights
  clock.py     times without waiting
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.train.loop import Trainer as Trainer
    from fulltilt.train.step import HybridPrecisionTrainer as HybridPrecisionTrainer

__all__ = ["HybridPrecisionTrainer", "Trainer"]

# Imported on first use: `fulltilt train --help` must not load torch.
_HOMES = {"HybridPrecisionTrainer": "step", "Trainer": "loop"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fulltilt.train' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"fulltilt.train.{home}"), name)
