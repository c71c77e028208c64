"""The hours that all sensors cover; rows that are no hourly readings are refused, before memory is taken for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_tables import BySensor, Reading

_HOUR: Final = 3600
_DAY: Final = 24
_SPACED: Final = 2
"""Hours between rows from which on readings are not hourly."""
_FEW_FAR: Final = 0.01
"""Of all hours, those that may be a mistake where they are far from the others."""
MANY_MISSING: Final = 0.5
"""Of all readings: what is then learnt is mostly to repeat the last one."""


def hour_of(row: Reading) -> int:
    """Counted from 1970."""
    return math.floor(row.time / _HOUR)


def written(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * _HOUR, UTC):%Y-%m-%d %H:00}"


def covered(path: Path, by_sensor: BySensor, files: Mapping[str, Path]) -> tuple[int, int, list[str]]:
    """The first and the last hour that every sensor covers, and what is to be said of those that are left out."""
    hours = {name: {*map(hour_of, rows)} for name, rows in by_sensor.items()}
    _refuse_spaced(path, hours)
    begins, ends = ({name: of(found) for name, found in hours.items()} for of in (min, max))
    late, early = max(begins, key=begins.__getitem__), min(ends, key=ends.__getitem__)
    first, last = begins[late], ends[early]
    if last < first:
        raise InputError(
            f"{path}: there is no hour that all {len(hours)} sensors cover: {early} ends {written(last)}, and {late} "
            f"begins {written(first)}; leave one of them out"
        )
    _refuse_far(path, by_sensor, hours, files, (first, last))
    every = set[int]().union(*hours.values())
    outside = sum(not first <= hour <= last for hour in every)
    if not outside:
        return first, last, []
    why = [f"{late} begins {written(first)}"] if min(every) < first else []
    why += [f"{early} ends {written(last)}"] if max(every) > last else []
    return first, last, [f"{outside:,} of {len(every):,} hours left out: {', '.join(why)}"]


def _refuse_spaced(path: Path, hours: Mapping[str, set[int]]) -> None:
    """Readings of each second hour, or fewer; several in an hour are averaged."""
    steps = [later - hour for found in hours.values() for hour, later in pairwise(sorted(found))]
    apart = float(np.median(steps)) if steps else 1.0
    if apart >= _SPACED:
        kind = "daily readings" if apart == _DAY else f"readings of every {apart:g} hours"
        raise InputError(
            f"{path}: rows of each sensor are {apart:g} hours apart, so these look like {kind}; the recipe is hourly "
            "and would learn to repeat what stood there before. Give readings of each hour (several in an hour are "
            "averaged)"
        )


def _refuse_far(
    path: Path,
    by_sensor: BySensor,
    hours: Mapping[str, set[int]],
    files: Mapping[str, Path],
    common: tuple[int, int],
) -> None:
    """Hours of which most have no row: one mistaken year would take gigabytes."""
    first, last = common
    inside = {name: {hour for hour in found if first <= hour <= last} for name, found in hours.items()}
    span, there = (last - first + 1) * len(hours), sum(map(len, inside.values()))
    if there >= (1 - MANY_MISSING) * span:
        return
    every = sorted(set[int]().union(*inside.values()))
    behind = 1 + int(np.argmax(np.diff(every))) if len(every) > 1 else 0
    fewer, others = sorted((every[:behind], every[behind:]), key=len)
    if fewer and len(fewer) <= _FEW_FAR * len(every):
        far, usual = set(fewer), f"{written(others[0])} to {written(others[-1])}"
        rows = [(name, row) for name, rows in by_sensor.items() for row in rows if hour_of(row) in far]
        name, row = min(rows, key=lambda found: found[1].line)
        raise InputError(
            f"{files[name]}, line {row.line}: the time is {written(hour_of(row))}, far from all others ({usual}): "
            "correct it, or take the row out"
        )
    raise InputError(
        f"{path}: of {span:,} hours from {written(first)} to {written(last)} only {there:,} have a row. At most half "
        "may be missing; leave out the sensor or the time in which little was read"
    )
