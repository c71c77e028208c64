"""Readings of real sensors: a folder with a CSV for each of them, or one CSV, of one sensor or with a column that names
them.

    readings/north.csv     time,pm25,wind              readings.csv     time,sensor,pm25,wind
                           2024-01-01 00:00,35,1.2                      2024-01-01 00:00,north,35,1.2

Times are as forecast_times.py has them. Every column of numbers but those is a quantity; one of words (a wind's name)
or one that counts the rows is left out. Where an hour is missing, or a reading (empty, NA, nan, inf, -999), the last
one before it stands in its place: nothing that is read later may be seen before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_data import Readings
from fulltilt.recipes.forecast_hours import MANY_MISSING, covered, hour_of, written
from fulltilt.recipes.forecast_stand_ins import without_stand_ins
from fulltilt.recipes.forecast_tables import BySensor, Column, Known, Reading, read_sensors

_COUNTERS: Final = ("no", "index", "id", "row", "epoch")
"""Columns that may count rows; nitric oxide is called so as well, and does not rise by 1 each hour."""
_NAMELESS: Final = ("column ", "unnamed: ")
"""How the name begins of a column that has none, from us and from pandas, whose index it is."""
_COUNTS: Final = 0.99
"""Of a counter's steps, all up or all down: files that are joined begin anew, and rows are taken out."""
_BY_ONE: Final = 100
"""Steps of exactly 1 from which on a column counts, whatever its name is."""

State = tuple[Path, int, int] | None
"""A file's name, size and time of change; None for one that can't be opened either."""


def read_once(path: Path) -> Readings:
    """`read_readings`, again only after a file has changed: training and validation ask for the same."""
    return _kept(path, tuple(map(_state, _files(path))))


@lru_cache(maxsize=1)
def _kept(path: Path, files: tuple[State, ...]) -> Readings:  # noqa: ARG001  # other files are other readings
    return read_readings(path)


def _state(file: Path) -> State:
    try:
        found = file.stat()
    except OSError:
        return None
    return file.absolute(), found.st_size, found.st_mtime_ns


def read_readings(path: Path) -> Readings:
    """All sensors of a folder or CSV over the hours that every one of them covers."""
    known = Known()
    by_sensor, notes = _by_sensor(path, known)
    columns = known.columns
    if not by_sensor:
        raise InputError(f"{path} holds no readings: there are no rows below its header")
    _refuse_stray_words(columns)
    counters = _counters(columns, by_sensor)
    for name in columns:
        notes += [] if name in counters else without_stand_ins(name, chain.from_iterable(by_sensor.values()))
    quantities, lacking = _common(path, by_sensor, counters)
    first, last, cut = covered(path, by_sensor, known.files)
    notes += cut
    found = np.stack([_grid(path, name, rows, quantities, first, last) for name, rows in by_sensor.items()], axis=-1)
    begun = np.argmax(~np.isnan(found), axis=0)
    if begun.any():
        quantity, sensor = np.unravel_index(int(begun.argmax()), begun.shape)
        late = f"{tuple(by_sensor)[sensor]} reads no {quantities[quantity]} before"
        notes.append(f"hours left out at the beginning: {begun.max():,} ({late})")
    values = _carried(found)[begun.max() :]  # carried first: what has a gap at the cut was read before it
    found = found[begun.max() :]
    readings = Readings(
        values=values.astype(np.float32),
        quantities=quantities,
        sensors=tuple(by_sensor),
        read=~np.isnan(found),
        left_out=tuple(name + lacking.get(name, "") for name in columns if name not in quantities),
        notes=tuple(notes),
    )
    _refuse_sparse(path, readings, by_sensor)
    return readings


def _by_sensor(path: Path, known: Known) -> tuple[BySensor, list[str]]:
    """And what is to be said of the files."""
    files, is_folder = _files(path), os.path.isdir(path)
    found: BySensor = {}
    notes: list[str] = []
    for file in files:
        table = read_sensors(file, known, one_sensor=is_folder)
        for name, rows in table.sensors.items():
            found.setdefault(name, []).extend(rows)
        if table.repeated:
            notes.append(f"{file.name}: {table.repeated:,} rows that repeat another one exactly are left out")
        if table.cut_off is not None:
            notes.append(f"{file.name}, line {table.cut_off}, the last one, is cut off and left out")
        if is_folder and not table.sensors:
            notes.append(f"{file.name} holds no readings and is no sensor")
    return found, notes


def _files(path: Path) -> list[Path]:
    """Those of a folder, or the one."""
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; expected a folder of .csv files, or one")
    return _in_folder(path) if os.path.isdir(path) else [path]


def _in_folder(folder: Path) -> list[Path]:
    try:
        listed = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder} can't be looked into ({error.strerror}): make it readable") from error
    files = [
        file for file in listed if file.suffix.lower() == ".csv" and file.name[0] != "." and not os.path.isdir(file)
    ]
    if not files:
        raise InputError(f"{folder} holds no .csv file; expected one for each sensor")
    named: dict[str, Path] = {}
    for file in files:
        if (other := named.setdefault(file.stem, file)) is not file:
            raise InputError(
                f"{folder} holds {other.name} and {file.name}, which would be one sensor of two files: rename one of "
                "them if these are two sensors, or else put the rows of both into one file"
            )
    return files


def _refuse_stray_words(columns: Mapping[str, Column]) -> None:
    """A word or two among numbers would leave the column out of what is learnt, be it the one to forecast."""
    for column in columns.values():
        if 0 < column.words <= column.numbers:
            others = f" ({column.words} such cells, {column.numbers} numbers)"
            raise InputError(f"{column.first_word}, which is no number{others}; leave a cell empty where none was read")


def _counters(names: Iterable[str], by_sensor: BySensor) -> set[str]:
    """Columns that count the rows, those of each sensor or those of the file."""
    of_file = sorted((row for rows in by_sensor.values() for row in rows), key=lambda row: row.line)
    parts = [list(by_sensor.values()), [of_file]]
    return {name for name in names if any(_counts(name, part) for part in parts)}


def _counts(name: str, parts: list[list[Reading]]) -> bool:
    """Whether it goes on by whole numbers in one direction, or by ones, which no quantity does for long."""
    read = [[row.read.get(name, math.nan) for row in rows] for rows in parts]
    steps = [later - value for values in read for value, later in pairwise(filter(math.isfinite, values))]
    if name.startswith(_NAMELESS) or name in _COUNTERS:
        likely = [step for step in steps if step and step.is_integer()]
    else:
        likely = [step for step in steps if abs(step) == 1] if len(steps) >= _BY_ONE else []
    most = max(sum(step > 0 for step in likely), sum(step < 0 for step in likely))
    return most > 0 and most >= _COUNTS * len(steps)


def _common(path: Path, by_sensor: BySensor, counters: set[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Quantities that every sensor has, in the order of the first one, and of others who has none of them.

    A column with a word in it is none.
    """
    has: dict[str, set[str]] = {}
    for sensor, rows in by_sensor.items():
        always = set.intersection(*(set(row.read) for row in rows)) - counters
        has[sensor] = always & {name for row in rows for name, value in row.read.items() if not math.isnan(value)}
    found = set.intersection(*has.values())
    if not found:
        but = f"; {', '.join(sorted(counters))} only counts rows" if counters else ""
        all_have = f" that all {len(by_sensor)} sensors have" if len(by_sensor) > 1 else ""
        raise InputError(f"{path}: there is no column of numbers{all_have}{but}")
    some = set().union(*has.values()) - found
    lacking = {name: f" ({next(sensor for sensor in has if name not in has[sensor])} has none)" for name in some}
    order = next(iter(by_sensor.values()))[0].read
    return tuple(name for name in order if name in found), lacking


def _grid(
    path: Path, sensor: str, rows: list[Reading], quantities: tuple[str, ...], first: int, last: int
) -> NDArray[np.float64]:
    """Hours × quantities, nan where nothing was read; several readings of one hour are averaged."""
    shape = (last - first + 1, len(quantities))
    sums, counts = np.zeros(shape), np.zeros(shape)
    for row in rows:
        if first <= (hour := hour_of(row)) <= last:
            values = np.array([row.read[name] for name in quantities])
            there = ~np.isnan(values)
            sums[hour - first, there] += values[there]
            counts[hour - first, there] += 1
    silent = [name for name, count in zip(quantities, counts.sum(0), strict=True) if not count]
    if silent:
        raise InputError(f"{path}: {sensor} has no {silent[0]} in the hours that all sensors cover")
    with np.errstate(invalid="ignore"):
        return sums / counts


def _refuse_sparse(path: Path, readings: Readings, by_sensor: BySensor) -> None:
    if readings.missing_share <= MANY_MISSING:
        return
    assert readings.read is not None
    missing = f"of {readings.read.size:,} readings of an hour {int((~readings.read).sum()):,} are missing"
    hours = [hour_of(row) for rows in by_sensor.values() for row in rows]
    raise InputError(
        f"{path}: {missing} (rows are from {written(min(hours))} to {written(max(hours))}), "
        f"{readings.most_missing_of_all()}. At most half may be; leave out the column or the sensor, or the time in "
        "which little was read"
    )


def _carried(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where nothing was read, what was read last."""
    hours = np.arange(len(found)).reshape(-1, 1, 1)
    latest = np.maximum.accumulate(np.where(np.isnan(found), 0, hours), axis=0)
    return np.take_along_axis(found, latest, axis=0)
