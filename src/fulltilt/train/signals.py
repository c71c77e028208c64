"""SIGTERM and SIGINT: asked for once, training saves and leaves; asked twice, it breaks off."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopSignals:
    """While open, notes the first signal instead of dying of it; the loop looks at `asked` between steps."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python runs handlers in the main thread only; elsewhere the program's own ones stay.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
