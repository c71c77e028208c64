"""The progress bar: an epoch's batches, the pace, the wait, the time left. Redrawn a few times a second at most.

epoch 3/10 ━━━━━━━━━━━╸━━━━━━━━━━ 412/1000  loss 0.231  6,540 samples/s  GPU 97 %  wait 1 %  ETA 12:34
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from fulltilt.train.report.lines import per_second
from fulltilt.words import clock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

REFRESH_SECONDS = 0.25
_KEPT_FREE = 3
_RECENT_SECONDS = 5.0
"""Pace and wait are of about the last so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the loop did, seen over its last few seconds."""

    samples_per_second: float
    batches_per_second: float
    wait_share: float


class Meter:
    """Pace from totals: what was added since a moment some seconds ago."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int, int, float]] = []

    def mark(self, now: float, batches: int, samples: int, waited: float) -> Pace | None:
        """Totals at this moment; the pace, once there are two moments."""
        self._marks.append((now, batches, samples, waited))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _RECENT_SECONDS:
            self._marks.pop(0)
        then, *before = self._marks[0]
        seconds = now - then
        if seconds <= 0:
            return None
        return Pace(
            batches_per_second=(batches - before[0]) / seconds,
            samples_per_second=(samples - before[1]) / seconds,
            wait_share=(waited - before[2]) / seconds,
        )


class Bar:
    """A bar on a terminal; elsewhere nothing at all."""

    def __init__(self, shown: bool | Literal["auto"], *, stream: IO[str] | None = None) -> None:
        self.console: Console | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._meter = Meter()
        self._due = float("inf")
        stream = sys.stderr if stream is None else stream
        if shown is False or (shown == "auto" and not stream.isatty()):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        self.console = Console(file=stream, highlight=False)
        self._progress = _short_of_the_edge()(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            auto_refresh=False,  # a thread of its own would take the interpreter from the step whenever it likes
            expand=True,
            transient=True,  # what an epoch came to stays; how far it was does not
        )

    @property
    def due(self) -> float:
        """The moment (time.perf_counter) from which `update` has something to do."""
        return self._due

    def open(self) -> None:
        if self._progress is not None:
            self._progress.start()

    def close(self) -> None:
        self._due = float("inf")
        if self._progress is not None:
            self._progress.stop()

    def begin(self, title: str, total: int | None, done: int = 0) -> None:
        """A new epoch or validation; the bar before it goes."""
        self._meter = Meter()
        if self._progress is None:
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=total, completed=done, figures="")
        self._progress.refresh()
        self._due = time.perf_counter()

    def update(
        self,
        batches: int,
        samples: int,
        waited: float,
        *,
        loss: float | None,
        left: int | None,
        stats: Mapping[str, float] | None = None,
    ) -> None:
        """
        Args:
            batches: of this epoch so far; samples and seconds waited are totals of the same.
            left: batches to the end of the whole run.
        """
        if self._progress is None or self._task is None:
            return
        now = time.perf_counter()
        self._due = now + REFRESH_SECONDS
        pace = self._meter.mark(now, batches, samples, waited)
        self._progress.update(self._task, completed=batches, figures=figures(pace, loss=loss, left=left, stats=stats))
        self._progress.refresh()

    def advance(self, batches: int) -> None:
        """So many batches of something that has no figures; drawn when it is time to."""
        if self._progress is None or self._task is None or time.perf_counter() < self._due:
            return
        self._due = time.perf_counter() + REFRESH_SECONDS
        self._progress.update(self._task, completed=batches)
        self._progress.refresh()


def _short_of_the_edge() -> type[Progress]:
    """A progress whose line leaves room for the `^C` that a terminal writes behind it.

    At the edge that would go onto a line of its own, and it would be this one that is wiped away for the bar.
    """
    from rich.console import ConsoleOptions, RenderableType
    from rich.progress import Progress
    from rich.segment import Segment

    class Narrower:
        def __init__(self, inner: RenderableType) -> None:
            self._inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
            yield from console.render(self._inner, options.update_width(max(options.max_width - _KEPT_FREE, 1)))

    class Short(Progress):
        def get_renderable(self) -> RenderableType:
            return Narrower(super().get_renderable())

    return Short


def figures(
    pace: Pace | None, *, loss: float | None, left: int | None, stats: Mapping[str, float] | None = None
) -> str:
    """What stands behind the bar."""
    parts = [] if loss is None else [f"loss {loss:.4g}"]
    if pace is not None:
        parts.append(per_second(pace.samples_per_second))
    if stats is not None and stats.get("gpu_utilization") is not None:
        parts.append(f"GPU {stats['gpu_utilization']:.0f} %")
    if pace is not None:
        parts.append(f"wait {100 * pace.wait_share:.0f} %")
        if left is not None and pace.batches_per_second > 0:
            parts.append(f"ETA {clock(left / pace.batches_per_second)}")
    return "  ".join(parts)
