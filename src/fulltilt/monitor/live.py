"""The live view: pictures on the terminal's second screen, which is left as it was found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from fulltilt.machine.sample import Sample
from fulltilt.monitor.frame import ViewState, draw

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

LEAST_SECONDS = 0.25
"""Between two pictures: faster is not readable and costs the machine that is being watched."""


class LiveView:
    """Draws each sample, at most four times a second."""

    def __init__(self, console: Console, state: ViewState) -> None:
        from rich.live import Live

        self._state = state
        # Drawn when a sample comes, never from a thread: nothing is redrawn that has not changed.
        self._live = Live(
            _Picture(state),
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._drawn = float("-inf")

    def add(self, sample: Sample) -> None:
        """Take a sample in, and draw it if the last picture is old enough."""
        self._state.add(sample)
        now = time.monotonic()
        if now - self._drawn >= LEAST_SECONDS - 0.02:  # a tick that comes a little early still counts
            self._drawn = now
            self._live.refresh()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class _Picture:
    """Straight to segments: rich's own layout would cost more than all the readings together."""

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        height = options.height or console.height
        for line in draw(self._state, options.max_width, height):
            for text, style in line:
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment.line()
