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

    @property
    def age(self) -> tuple[int, int]:
        return self.sequence, self.step


def newest_first(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.age, reverse=True)


def best_first(entries: Iterable[Entry], mode: Mode) -> list[Entry]:
    """Those with a metric; of equal ones the earlier is the better, as nothing was gained since."""
    sign = 1 if mode == "min" else -1
    measured = [(sign * e.metric, e.age, e) for e in entries if e.metric is not None and not math.isnan(e.metric)]
    return [entry for _, _, entry in sorted(measured, key=lambda item: item[:2])]


def superfluous(entries: Sequence[Entry], *, keep_last: int, keep_best: int, mode: Mode) -> list[Entry]:
    """What may go: neither among the last nor among the best."""
    kept = {e.path for e in newest_first(entries)[:keep_last]} | {e.path for e in best_first(entries, mode)[:keep_best]}
    return [entry for entry in entries if entry.path not in kept]
