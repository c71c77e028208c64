"""One step fast and safe, then the loop around it.

step.py      HybridPrecisionTrainer: the step           loop.py       Trainer: fit, validate, resume
  roles.py     what of a batch is the target, the loss    training.py    an epoch's steps      validation.py
  device.py    where the model lives                      sources.py     whatever gives batches, as a feed
  engine.py    forward, loss, backward, optimizers        augmenting.py  augmentation inside the loop
  precision.py fp32, tf32, bf16, fp16                     losses.py      a bad loss: nan.py sees it without waiting
  optim.py     a user's optimizers, changed in place      unpacking.py   batches that are mappings
  choose.py    what to try, what to keep (pure)           saving.py      a run's state, to checkpoint/ and back
  trials.py    the trials, on the real model              course.py      where a run stands: resume, roll back
  snapshot.py  state taken and put back, bit for bit      report.py      progress.py, lines.py, logs.py
  graphed.py   the whole step as a CUDA graph             schedules.py, monitored.py, callbacks.py
  micro.py     micro-batches; out of memory               signals.py     save and leave
    ranks.py     all processes agree                      labels.py      looked at before they reach a GPU
  ema.py       averaged weights
  clock.py     times without waiting
several processes (torchrun)
  group.py     the process group, started and closed      parallel.py    a model for each (DDP), or a part (fsdp.py)
  together.py  what loops agree on                        shared.py      a DataLoader's samples, each rank its own
config.py    the YAML: config_file.py reads and checks it, build.py and data.py make a Trainer of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fulltilt.train.group import process_group as process_group
    from fulltilt.train.loop import Trainer as Trainer
    from fulltilt.train.step import HybridPrecisionTrainer as HybridPrecisionTrainer

__all__ = ["HybridPrecisionTrainer", "Trainer", "process_group"]

# Imported on first use: `fulltilt train --help` must not load torch.
_HOMES = {"HybridPrecisionTrainer": "step", "Trainer": "loop", "process_group": "group"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fulltilt.train' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"fulltilt.train.{home}"), name)
