"""CPU work beside the GPU's: tasks in a queue, threads that carry them out, results when they are asked for.

assisted.py   CPUAssistedTraining                       processor.py   AsyncDataProcessor
  registry.py   tasks by name: metrics.py, features.py    handover.py    tensors out of the GPU without a wait
pool.py       all of it together                        policy.py      what is decided (pure)
  tasks.py      a task                                    future.py      its result, some time
  queue.py      bounded, with priorities                  workers.py     threads, replaced when they die
  agenda.py     deadlines and retries                     expiry.py      results that nobody comes for
processes.py  for tasks that hold the interpreter lock  placing.py     ... seen by a trial
beside.py     torchmetrics beside the step              balance.py     on the CPU or on the GPU (pure)
  gather.py     batches before they are counted (pure)    lanes.py       threads that count them
  meeting.py    ranks bring their counts together         tables.py      masks counted from a table of their scores
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.assist.assisted import CPUAssistedTraining as CPUAssistedTraining
    from fulltilt.assist.features import extract_features as extract_features
    from fulltilt.assist.future import TaskFuture as TaskFuture
    from fulltilt.assist.policy import Priority as Priority
    from fulltilt.assist.processor import AsyncDataProcessor as AsyncDataProcessor

__all__ = ["AsyncDataProcessor", "CPUAssistedTraining", "Priority", "TaskFuture", "extract_features"]

_HOMES = {
    "AsyncDataProcessor": "processor",
    "CPUAssistedTraining": "assisted",
    "Priority": "policy",
    "TaskFuture": "future",
    "extract_features": "features",
}

__getattr__ = on_first_use(__name__, _HOMES)
