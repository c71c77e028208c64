"""The figure that says which epoch was the best."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from fulltilt.errors import InputError
from fulltilt.train.checkpoint.keep import Mode

_SMALLER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "distance")


class Monitored:
    """Reads the figure from epochs' records and remembers its best value."""

    def __init__(self, name: str, mode: Mode | None, *, metrics: Mapping[str, Any], validates: bool) -> None:
        """
        Args:
            mode: None: as the metric says of itself; of others, losses and errors are better when smaller.
            metrics: those that there are, by name.
            validates: without validation data, the loss in training is looked at instead of the one in validation.
        """
        self.name = "train_loss" if name == "val_loss" and not validates else name
        self.mode: Mode = mode or _mode_of(self.name, metrics)
        self.best: float | None = None
        phases = ("train", "val") if validates else ("train",)
        known = [f"{phase}_{figure}" for phase in phases for figure in ("loss", *metrics)]
        # A metric with a value for each class has names of its own: val_iou_0, val_iou_1, …
        if not any(self.name == each or self.name.startswith(f"{each}_") for each in known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InputError(f"training.monitor: found {name!r}{hint}; there are {', '.join(known)}")

    def of(self, record: Mapping[str, Any]) -> float | None:
        """The figure, in epochs that have it."""
        value = record.get(self.name)
        return None if value is None or math.isnan(value) else float(value)

    def improves(self, value: float | None) -> bool:
        """Whether it is better than ever; remembered if so."""
        if value is None:
            return False
        if self.best is not None and (value >= self.best if self.mode == "min" else value <= self.best):
            return False
        self.best = value
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "figure": self.name}

    def load_state_dict(self, state: Mapping[str, Any]) -> str:
        """The best value so far, unless it is another figure's; returns the figure's name."""
        figure: str = state.get("figure", self.name)
        self.best = state["best"] if figure == self.name else None
        return figure


def _mode_of(name: str, metrics: Mapping[str, Any]) -> Mode:
    """torchmetrics knows of most; a wrong guess would keep the worst checkpoint as the best."""
    figure = name.removeprefix("train_").removeprefix("val_")
    meant = [each for each in metrics if figure == each or figure.startswith(f"{each}_")]
    known = getattr(metrics[max(meant, key=lambda each: len(str(each)))], "higher_is_better", None) if meant else None
    if isinstance(known, bool):
        return "max" if known else "min"
    return "min" if any(word in name.lower() for word in _SMALLER_IS_BETTER) else "max"
