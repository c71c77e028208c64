"""One step fast and safe, then the loop around it.

step/           HybridPrecisionTrainer: the step       loop.py         Trainer: fit, validate, resume
config/         the YAML, read and checked             training.py     an epoch's steps      validation.py
build.py        a Trainer made of it                   sources.py      whatever gives batches, as a feed
ranks/          several processes (torchrun)           unpacking.py    batches that are mappings
checkpoint/     files, and what is in them             augmenting.py   augmentation inside the loop
saving.py       a run's state, to them and back        labels.py       looked at before they reach a GPU
course.py       where a run stands: resume, roll back  losses.py       a bad loss: nan.py sees it without waiting
place.py        … as it is saved                       schedules.py    learning rates
report/         lines, the bar, logs                   callbacks.py, signals.py (save and leave), seeding.py
models.py, shapes.py    something to try it with
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.train.loop import Trainer as Trainer
    from fulltilt.train.ranks.group import process_group as process_group
    from fulltilt.train.step.step import HybridPrecisionTrainer as HybridPrecisionTrainer

__all__ = ["HybridPrecisionTrainer", "Trainer", "process_group"]

# Imported on first use: `fulltilt train --help` must not load torch.
_HOMES = {"HybridPrecisionTrainer": "step.step", "Trainer": "loop", "process_group": "ranks.group"}

__getattr__ = on_first_use(__name__, _HOMES)
