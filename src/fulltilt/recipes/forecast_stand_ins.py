"""What loggers write where they have read nothing: known codes are taken out of readings, others are said."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulltilt.recipes.forecast_tables import Reading

_STAND_INS: Final = (-9999.0, -999.0, -200.0, 9999.0)
"""The outermost first."""
_LEAVE_EMPTY: Final = "where that means nothing, leave it empty"
_FAR: Final = 10
"""Times as far from all others as these are from each other, for a value that is there once or beside few others."""
_FEW_VALUES: Final = 10
"""Of so few different ones the next may well be far from all."""


def without_stand_ins(name: str, readings: Iterable[Reading]) -> list[str]:
    """Take out what only says that nothing was read, where it can be nothing else; and what is to be said of it."""
    rows = [row for row in readings if not math.isnan(row.read.get(name, math.nan))]
    values = np.array([row.read[name] for row in rows])
    gone = np.zeros(len(values), np.bool_)
    notes = []
    while value := next((value for value in _STAND_INS if _only_stands_in(value, values[~gone])), None):
        notes.append(f"{int((values == value).sum()):,} × {value:g} in {name}: taken as missing")
        gone |= values == value  # what was hidden behind it is looked at again
    for at in np.flatnonzero(gone):
        rows[at].read[name] = math.nan
    return notes + [note for low in (True, False) for note in _odd_ends(name, values[~gone], low=low)]


def _only_stands_in(value: float, values: NDArray[np.float64]) -> bool:
    return _may_stand_in(value, values) and _is_apart(value, values[values != value])


def _may_stand_in(value: float, values: NDArray[np.float64]) -> bool:
    """Whether it is one of the lowest or highest; a single 9999 may be a peak."""
    times = int((values == value).sum())
    return times >= (1 if value < 0 else 2) and value == (values.min() if value < 0 else values.max())


def _is_apart(value: float, others: NDArray[np.float64]) -> bool:
    """Farther from the other readings than they are from each other, or of a sign that they never have."""
    if not len(others):
        return False
    return bool(np.abs(others - value).min() > np.ptp(others) or value < 0 <= others.min())


def _odd_ends(name: str, values: NDArray[np.float64], *, low: bool) -> list[str]:
    """What is to be said of the lowest values, or of the highest: they stay, and may yet mean that nothing was read."""
    notes = []
    while len(values):
        value = float(values.min() if low else values.max())
        others = values[values != value]
        times = f"{len(values) - len(others):,} × {value:g}"
        if value in _STAND_INS and _may_stand_in(value, values):
            notes.append(f"{times}, its {'lowest' if low else 'highest'} value, in {name}: {_LEAVE_EMPTY}")
        elif _is_odd(value, len(values) - len(others), others):
            where = "the only one below 0" if value < 0 <= others.min() else "far from all others"
            notes.append(f"{times} in {name}, {where}: {_LEAVE_EMPTY}")
        else:
            break
        values = others
    return notes


def _is_odd(value: float, times: int, others: NDArray[np.float64]) -> bool:
    """Whether it looks like a code. Dust and rain have single peaks far above the rest, which are none."""
    if len(others) < _FEW_VALUES or not (spread := np.ptp(others)):
        return False
    many = times > 1 and len(np.unique(others)) >= _FEW_VALUES
    if many and value <= -1 and others.min() >= 0:  # a sensor's own noise is less
        return True
    return bool(np.abs(others - value).min() > (1 if many else _FAR) * spread)
