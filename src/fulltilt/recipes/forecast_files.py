"""Readings of real sensors: a folder with a CSV for each of them, or one CSV, of one sensor or with a column that names
them.

    readings/north.csv     time,pm25,wind              readings.csv     time,sensor,pm25,wind
                           2024-01-01 00:00,35,1.2                      2024-01-01 00:00,north,35,1.2

Times are ISO dates, or columns year, month, day, hour. Every column of numbers but those is a quantity; one of words
(a wind's name) is left out. An hour that is missing, or a reading that is (empty, NA, nan, inf), is drawn straight
between the readings around it.
"""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fulltilt.errors import InputError
from fulltilt.feed.listing import separator_of
from fulltilt.recipes.forecast_data import Readings

log = logging.getLogger("fulltilt.recipes")

_TIMES = ("time", "timestamp", "datetime", "date")
_PARTS = ("year", "month", "day", "hour")
_SENSORS = ("sensor", "station", "site")
_COUNTERS = ("no", "index", "")
"""Columns that only count rows."""
_MISSING = ("", "na", "nan", "null", "none")
_HOUR = 3600
_FEW_AGAIN = 0.01
"""Of a sensor's rows that may have a time that another has: clocks are set back once a year."""
_MANY_MISSING = 0.5
"""Of all readings: what is then learnt is mostly how to draw a straight line."""

Row = tuple[int, dict[str, float]]
"""The hour, counted from 1970, and what was read."""


@dataclass(slots=True)
class _Column:
    """What the cells of a column are."""

    numbers: int = 0
    words: int = 0
    first_word: str = ""
    """Where it is, and what."""


Columns = dict[str, _Column]


def read_readings(path: Path) -> Readings:
    """All sensors of a folder or CSV over the hours that every one of them covers."""
    columns: Columns = {}
    by_sensor = _by_sensor(path, columns)
    if not by_sensor:
        raise InputError(f"{path} holds no readings: there are no rows below its header")
    _refuse_stray_words(columns)
    quantities = _common(path, by_sensor)
    first = max(min(hour for hour, _ in rows) for rows in by_sensor.values())
    last = min(max(hour for hour, _ in rows) for rows in by_sensor.values())
    if last < first:
        raise InputError(f"{path}: there is no hour that all {len(by_sensor)} sensors cover")
    grids = [_grid(path, name, rows, quantities, first, last) for name, rows in by_sensor.items()]
    missing, total = sum(int(np.isnan(grid).sum()) for grid in grids), sum(grid.size for grid in grids)
    if missing:
        level = logging.WARNING if missing > _MANY_MISSING * total else logging.INFO
        log.log(level, "%s: %d of %d readings are missing and drawn between their neighbours", path, missing, total)
    filled = np.stack([_filled(grid) for grid in grids], axis=-1)
    return Readings(
        values=filled.astype(np.float32),
        quantities=quantities,
        sensors=tuple(by_sensor),
        drawn_share=missing / total,
        left_out=tuple(name for name in columns if name not in quantities),
    )


def _by_sensor(path: Path, columns: Columns) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix.lower() == ".csv" and file.name[0] != "."]
        if not files:
            raise InputError(f"{path} holds no .csv file; expected one for each sensor")
        for file in files:
            for _, row in _rows(file, columns):
                found.setdefault(file.stem, []).append(row)
    elif path.is_file():
        for name, row in _rows(path, columns, alone=True):
            found.setdefault(path.stem if name is None else name, []).append(row)
    else:
        raise InputError(f"{path} does not exist; expected a folder of .csv files, or one")
    return found


def _rows(file: Path, columns: Columns, *, alone: bool = False) -> Iterable[tuple[str | None, Row]]:
    """Sensor, where there is a column for it, and row.

    Args:
        alone: no other file says that each is of one sensor.
    """
    try:
        yield from _parsed(file, columns, alone=alone)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} can't be read as a table ({error}); save it as a .csv in UTF-8") from error


def _parsed(file: Path, seen: Columns, *, alone: bool) -> Iterator[tuple[str | None, Row]]:
    with file.open(newline="", encoding="utf-8-sig") as opened:
        separator = separator_of(opened.readline())
        opened.seek(0)
        reader = csv.DictReader(opened, delimiter=separator)
        columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
        if columns and not any(name in columns for name in _TIMES) and not all(part in columns for part in _PARTS):
            between = "; the first line names the columns, with commas, semicolons or tabs between them"
            only = between if len(columns) == 1 else ""
            raise InputError(
                f"{file} has no column {', '.join(_TIMES)}, nor {', '.join(_PARTS)}; found {', '.join(columns)}{only}"
            )
        sensor = next((columns[name] for name in _SENSORS if name in columns), None)
        taken = {*_TIMES, *_PARTS, *_SENSORS, *_COUNTERS}
        quantities = {low.replace(".", ""): name for low, name in columns.items() if low not in taken}
        counts = {low: seen.setdefault(low, _Column()) for low in quantities}
        times: set[float] = set()
        rows = 0
        again = ""
        for line in reader:
            where = f"{file}, line {reader.line_num}"
            if sensor is not None and not (line[sensor] or "").strip():
                raise InputError(f"{where}: an empty {sensor}; each row names its sensor")
            read: dict[str, float] = {}
            for low, name in quantities.items():
                value = _number(line[name], comma=separator != ",")
                if value is None:
                    counts[low].words += 1
                    counts[low].first_word = counts[low].first_word or f"{where}: {name} is {line[name]!r}"
                else:
                    counts[low].numbers += not math.isnan(value)
                    read[low] = value
            time = _time(where, line, columns)
            again = again or (where if time in times else "")
            times.add(time)
            rows += 1
            yield None if sensor is None else line[sensor].strip(), (math.floor(time / _HOUR), read)
    if alone and sensor is None and rows - len(times) > _FEW_AGAIN * rows:
        raise InputError(
            f"{again}: a time that another row has, as have {rows - len(times)} of {rows}, and there is no column "
            f"{' or '.join(_SENSORS)}: are these several sensors? Name the column so that tells them apart, or give "
            "each a file of its own in a folder"
        )


def _refuse_stray_words(columns: Columns) -> None:
    """A word or two among numbers would leave the column out of what is learnt, be it the one to forecast."""
    for column in columns.values():
        if 0 < column.words <= column.numbers:
            others = f" ({column.words} such cells, {column.numbers} numbers)"
            raise InputError(f"{column.first_word}, which is no number{others}; leave a cell empty where none was read")


def _time(where: str, line: Mapping[str, str], columns: Mapping[str, str]) -> float:
    """Seconds since 1970."""
    name = next((columns[name] for name in _TIMES if name in columns), None)
    try:
        if name is not None:
            found = datetime.fromisoformat(line[name].strip())
        else:
            found = datetime(*(int(line[columns[part]]) for part in _PARTS))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: no time can be read ({error}); expected such as 2024-01-31 13:00") from error
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return aware.timestamp()


def _number(text: str | None, *, comma: bool = False) -> float | None:
    """nan where a reading is missing; None for what is no number at all, such as a wind's name.

    Args:
        comma: one between digits is a decimal point: it does not part the columns.
    """
    if text is None or text.strip().lower() in _MISSING:
        return math.nan
    try:
        value = float(text.replace(",", ".") if comma else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else math.nan


def _common(path: Path, by_sensor: Mapping[str, list[Row]]) -> tuple[str, ...]:
    """Quantities that every sensor has, in the order of the first one; a column with a word in it is none."""
    found: list[str] | None = None
    for rows in by_sensor.values():
        always = set.intersection(*(set(read) for _, read in rows))
        ever = {name for _, read in rows for name, value in read.items() if not math.isnan(value)}
        order = found if found is not None else list(rows[0][1])
        found = [name for name in order if name in always & ever]
    if not found:
        raise InputError(f"{path}: there is no column of numbers that all {len(by_sensor)} sensors have")
    return tuple(found)


def _grid(
    path: Path, sensor: str, rows: list[Row], quantities: tuple[str, ...], first: int, last: int
) -> NDArray[np.float64]:
    """Hours × quantities, nan where nothing was read; several readings of one hour are averaged."""
    shape = (last - first + 1, len(quantities))
    sums, counts = np.zeros(shape), np.zeros(shape)
    for hour, read in rows:
        if first <= hour <= last:
            values = np.array([read[name] for name in quantities])
            there = ~np.isnan(values)
            sums[hour - first, there] += values[there]
            counts[hour - first, there] += 1
    silent = [name for name, count in zip(quantities, counts.sum(0), strict=True) if not count]
    if silent:
        raise InputError(f"{path}: {sensor} has no {silent[0]} in the hours that all sensors cover")
    with np.errstate(invalid="ignore"):
        return sums / counts


def _filled(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    time = np.arange(len(grid))
    return np.stack([np.interp(time, time[~np.isnan(of)], of[~np.isnan(of)]) for of in grid.T], axis=1)
