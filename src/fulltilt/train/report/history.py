"""What came of a run."""

from __future__ import annotations

import signal
from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class History:
    """Given back by `Trainer.fit`."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    """A record per epoch: train_loss, val_loss, metrics, samples_per_second, lr, …"""
    losses: array[float] = field(default_factory=lambda: array("d"))
    """The loss of every step made by this call of `fit`."""
    steps: int = 0
    """Steps made in all, also before a resume."""
    best: float | None = None
    """The best value so far of the figure that is monitored."""
    monitored: str = "val_loss"
    """That figure's name: of data that validates nothing it is train_loss, where val_loss was asked for."""
    stopped_by: signal.Signals | None = None
    """The signal that ended the run early, after it was saved."""

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's record; empty when none was completed."""
        return self.epochs[-1] if self.epochs else {}
