"""The search, seen while it goes on: a bar, when it takes long enough to be looked at."""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS = 2.0
_REFRESH_SECONDS = 0.1


class Bar:
    """On a terminal, from the third second on; elsewhere nothing."""

    def __init__(self, expected_trials: int, *, shown: bool, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = shown and self._stream.isatty()
        self._expected, self._done, self._title = expected_trials, 0, ""
        self._began = self._drawn = time.perf_counter()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def trying(self, size: int) -> None:
        self._title = f"batch size: trying {size}"
        self.tick()

    def tried(self) -> None:
        self._done += 1
        self.tick()

    def tick(self) -> None:
        """Called after every step of a trial: draws when there is something new to see."""
        now = time.perf_counter()
        if not self._shown or now - self._began < _PATIENCE_SECONDS or now - self._drawn < _REFRESH_SECONDS:
            return
        self._drawn = now
        if self._progress is None:
            self._open()
        assert self._progress is not None
        assert self._task is not None
        total = max(self._expected, self._done + 1)
        self._progress.update(self._task, description=self._title, completed=self._done, total=total)
        self._progress.refresh()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("sizes"),
            TimeElapsedColumn(),
            console=Console(file=self._stream, highlight=False),
            auto_refresh=False,  # a thread of its own would disturb what is being timed
            transient=True,  # the table stays
        )
        self._task = self._progress.add_task(self._title, total=self._expected, completed=self._done)
        self._progress.start()
