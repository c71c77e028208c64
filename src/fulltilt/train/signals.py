"""SIGTERM and SIGINT: asked for once, training saves and leaves; asked twice, it breaks off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class StopSignals:
    """While open, notes the first signal instead of dying of it; the loop looks at `asked` between steps.

    Several processes must leave at the same step, or some would wait for the others' gradients for ever: with
    `agreed` a signal counts only once all of them have been told of it, by `agree`.
    """

    def __init__(self, agreed: Callable[[int], int] | None = None) -> None:
        """
        Args:
            agreed: the largest of all ranks' numbers; None: this process is alone.
        """
        self.asked: signal.Signals | None = None
        self._noted: signal.Signals | None = None
        self._agreed = agreed
        self._before: dict[int, Any] = {}

    def agree(self) -> None:
        """Called by all ranks at the same step; alone it does nothing."""
        if self._agreed is not None and self.asked is None:
            number = self._agreed(self._noted or 0)
            self.asked = signal.Signals(number) if number else None

    def __enter__(self) -> Self:
        # Python runs handlers in the main thread only; elsewhere the program's own ones stay.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._noted = signal.Signals(number)
        if self._agreed is None:
            self.asked = self._noted
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
