"""Training's state, kept whatever happens: copied out beside the step, written aside, checked when it is read.

    state ─ tree.py ─► tensors + a tree of plain values ─ layout.py ─► where each tensor lies
              │                                                          │
              │        staging.py   one copy out of the step's way ◄─────┘
              ▼             ▼
          file.py      one file: written, synced, verified, read     sharded.py  a folder that many ranks write
              ▼                                                      ▼   (shards.py, ranks.py)
          folder.py    names, renames, leftovers, which ones are kept (keep.py)
              ▼
          store.py     Checkpoints: the thread that writes, and what is loaded

match.py  is it this model's?      rng.py  random states of Python, NumPy, torch and the GPU
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.lazy import on_first_use

if TYPE_CHECKING:
    from fulltilt.train.checkpoint.match import check_matches as check_matches
    from fulltilt.train.checkpoint.match import load_trained as load_trained
    from fulltilt.train.checkpoint.store import Checkpoints as Checkpoints
    from fulltilt.train.checkpoint.store import load_checkpoint as load_checkpoint

__all__ = ["Checkpoints", "check_matches", "load_checkpoint", "load_trained"]

_HOMES = {"Checkpoints": "store", "check_matches": "match", "load_checkpoint": "store", "load_trained": "match"}

__getattr__ = on_first_use(__name__, _HOMES)
