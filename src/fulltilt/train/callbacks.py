"""What a program may do at a training run's turning points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fulltilt.errors import InputError

if TYPE_CHECKING:
    from fulltilt.train.loop import Trainer


class Callback:
    """Override what is wanted. Called on every rank; a callback that writes should ask `trainer.is_main`.

    There is none for each step: what a loop does 5,000 times a second belongs into the model or the loss.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Training is about to begin or to go on; `trainer.epoch` and `trainer.step` say where."""

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """An epoch is over, validated and logged: `record` holds its figures. `trainer.stop()` ends after it."""

    def on_end(self, trainer: Trainer) -> None:
        """Training is over, was stopped or has failed."""


def as_callbacks(given: Any) -> list[Callback]:
    """What a program passes, as a list."""
    if not isinstance(given, Iterable):
        raise InputError(f"callbacks is one {type(given).__name__}; expected a list: callbacks=[…]")
    found = list(given)
    for each in found:
        if not isinstance(each, Callback):
            raise InputError(f"a callback must be a Callback, found {type(each).__name__}")
    return found
