"""Which checkpoints stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint in the folder."""

    path: Path
    sequence: int
    """Grows with every save, unlike the step, which falls when training is begun anew or rolled back."""
    step: int
    metric: float | None = None
    """None where there is none, or where the header can't be read."""
    figure: str | None = None
    """What the metric is: val_loss, val_iou. None where that was not said: then it is what is asked for."""
    mode: Mode | None = None
    """Which way that gets better."""

    @property
    def age(self) -> tuple[int, int]:
        return self.sequence, self.step


def newest_first(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.age, reverse=True)


def best_first(entries: Iterable[Entry], mode: Mode, figure: str | None = None) -> list[Entry]:
    """Those with a metric, which is this figure; of equal ones the earlier is the better, as nothing was gained since.

    Figures are not compared with each other: a loss of 0.3 is no worse than an accuracy of 0.9.
    """
    sign = 1 if mode == "min" else -1
    measured = [
        (sign * e.metric, e.age, e)
        for e in entries
        if e.metric is not None and not math.isnan(e.metric) and (None in (figure, e.figure) or e.figure == figure)
    ]
    return [entry for _, _, entry in sorted(measured, key=lambda item: item[:2])]


def superfluous(
    entries: Sequence[Entry], *, keep_last: int, keep_best: int, mode: Mode, figure: str | None = None
) -> list[Entry]:
    """What may go: neither among the last nor among the best, be it by a figure that was looked at before."""
    kept = {e.path for e in newest_first(entries)[:keep_last]}
    kept |= {e.path for e in best_first(entries, mode, figure)[:keep_best]}
    for other in {e.figure for e in entries} - {None, figure}:
        of_it = newest_first(e for e in entries if e.figure == other)
        kept |= {e.path for e in best_first(of_it, of_it[0].mode or mode)[:keep_best]}
    return [entry for entry in entries if entry.path not in kept]
