"""Learning-rate schedulers: which step when."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR, ReduceLROnPlateau

from fulltilt.errors import InputError
from fulltilt.train.report.monitored import Monitored

log = logging.getLogger("fulltilt.train")

_LENGTHS = ("total_steps", "_schedule_phases", "T_max", "total_iters")
"""Attributes in which schedulers keep how long the run is."""


class Schedules:
    """A run's schedulers, some stepped after every optimizer step, the others after every epoch."""

    def __init__(self, given: Any, interval: Literal["epoch", "step"] | None) -> None:
        """
        Args:
            given: None, one or several.
            interval: None: whatever is made for steps (OneCycleLR, CyclicLR) each step, the others each epoch.
        """
        self.all: list[Any] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        for scheduler in self.all:
            if isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
                found = f"the class {scheduler.__name__}" if isinstance(scheduler, type) else repr(scheduler)
                raise InputError(
                    f"scheduler: found {found}; expected one made for the optimizer, such as "
                    "CosineAnnealingLR(optimizer, T_max=10)"
                )
        self.per_step = [s for s in self.all if interval == "step" or (interval is None and _is_for_steps(s))]
        self._per_epoch = [s for s in self.all if s not in self.per_step]

    def check(self, optimizers: Sequence[Optimizer], *, updates: int | None, monitored: Monitored) -> None:
        """Before training: what would fail in the midst of it, have no effect, or the opposite one.

        Args:
            updates: how often the optimizers are going to step, where that is known.
            monitored: the figure that a plateau is looked for in.
        """
        for scheduler in self.all:
            name, acts_on = type(scheduler).__name__, getattr(scheduler, "optimizer", None)
            if isinstance(acts_on, Optimizer) and all(acts_on is not optimizer for optimizer in optimizers):
                raise InputError(f"scheduler: {name} was made for another optimizer than the one that is trained with")
            if isinstance(scheduler, ReduceLROnPlateau) and scheduler.mode != monitored.mode:
                better = "larger" if monitored.mode == "max" else "smaller"
                raise InputError(
                    f"scheduler: ReduceLROnPlateau has mode={scheduler.mode!r}, but {monitored.name}, which it is "
                    f"told, is better when {better}: give it mode={monitored.mode!r}, or set monitor_mode"
                )
        for scheduler in self.per_step:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise InputError("scheduler: ReduceLROnPlateau is told an epoch's figure; leave scheduler_interval out")
            if isinstance(scheduler, OneCycleLR) and updates is not None and updates > scheduler.total_steps:
                raise InputError(
                    f"scheduler: OneCycleLR was made for {scheduler.total_steps} steps and can't go beyond; this run "
                    f"has {updates}: set total_steps to that"
                )

    def epoch_ended(self, monitored: float | None) -> None:
        """One that waits for a plateau is told the monitored figure, in epochs that have one."""
        for scheduler in self._per_epoch:
            if not isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step()
            elif monitored is not None:
                scheduler.step(monitored)

    def state_dict(self) -> list[dict[str, Any]]:
        return [_plain(scheduler.state_dict()) for scheduler in self.all]

    def check_state(self, states: Sequence[dict[str, Any]]) -> None:
        """Whether saved states are these schedulers'."""
        if len(states) != len(self.all):
            raise InputError(f"the checkpoint has {len(states)} schedulers, this run {len(self.all)}; use the same")
        for scheduler, state in zip(self.all, states, strict=True):
            own, saved = (set(filter(_is_public, each)) for each in (_plain(scheduler.state_dict()), state))
            # Somebody's own scheduler may come to keep more while it steps.
            is_torchs = type(scheduler).__module__ == ReduceLROnPlateau.__module__
            if own - saved or (is_torchs and saved - own):
                raise InputError(
                    f"the checkpoint's scheduler is not {type(scheduler).__name__}: it has "
                    f"{', '.join(sorted(saved))} instead of {', '.join(sorted(own))}; use the same"
                )

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on from there. One that was made for a longer or shorter run keeps its own length."""
        self.check_state(states)
        for scheduler, state in zip(self.all, states, strict=True):
            lengths = {name: getattr(scheduler, name) for name in _LENGTHS if name in state}
            if any(state[name] != value for name, value in lengths.items()):
                log.info("%s goes on with the length of this run", type(scheduler).__name__)
            scheduler.load_state_dict(state | lengths)


def _is_for_steps(scheduler: Any) -> bool:
    return isinstance(scheduler, OneCycleLR | CyclicLR)


def _is_public(name: str) -> bool:
    """What a scheduler keeps for itself differs between versions of torch."""
    return not name.startswith("_")


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Without functions, which a checkpoint does not hold (OneCycleLR keeps one, and makes it again itself)."""
    return {name: value for name, value in state.items() if not callable(value)}
