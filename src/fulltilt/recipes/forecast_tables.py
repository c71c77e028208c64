"""A .csv of readings: its columns, and for each sensor in it the rows, with their times."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from fulltilt.errors import InputError
from fulltilt.feed.listing import header_of, number_of, open_table
from fulltilt.recipes import forecast_times

_SENSORS: Final = ("sensor", "station", "site")
_ALIASES: Final = {"pm2.5": "pm25", "pm2_5": "pm25"}
"""Any other dot stays: PM1.0 is not PM10."""
_MISSING: Final = ("", "na", "nan", "null", "none", "n/a", "#n/a", "-", "--")
_NO_NUMBERS: Final = ("nan", "inf", "infinity")
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+")
"""1.013,5 can be but one number."""
_GROUP: Final = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
"""1.013 can be two."""
_LARGEST: Final = 3.4028234663852886e38
"""That float32 holds: readings are kept as that."""
_FEW_AGAIN: Final = 0.01
"""Of a sensor's rows that may have a time that another has: clocks are set back once a year."""


class Reading(NamedTuple):
    line: int
    time: float
    """Seconds since 1970."""
    read: dict[str, float]
    """By quantity; nan where nothing was read, and no entry where there is a word."""


BySensor = dict[str, list[Reading]]


@dataclass(slots=True)
class Column:
    """What the cells of a column are."""

    numbers: int = 0
    words: int = 0
    first_word: str = ""
    """Where it is, and what."""


@dataclass(slots=True, kw_only=True)
class Known:
    """What all files of a data set have in common."""

    columns: dict[str, Column] = field(default_factory=dict)
    """But for sensors and times, by their names in lower case."""
    files: dict[str, Path] = field(default_factory=dict)
    """By sensor."""
    zones: dict[bool, str] = field(default_factory=dict)
    """Where the first time stands that has a time zone, and the first that has none."""


@dataclass(slots=True, kw_only=True)
class SensorTable:
    sensors: BySensor = field(default_factory=dict)
    repeated: int = 0
    """Rows that repeat another one exactly, which were left out."""
    cut_off: int | None = None
    """The number of its last line, which was left out."""


def read_sensors(file: Path, known: Known, *, one_sensor: bool) -> SensorTable:
    """Sensors of a file, in the order of their first rows; without a column for them, one of the file's name.

    Args:
        known: of the files so far; what this one has is added.
        one_sensor: a file for each sensor: it is of one, whatever else it has.
    """
    with open_table(file) as (opened, dialect):
        reader = csv.reader(opened, dialect)
        return _Reader(file, reader, known, comma=dialect.delimiter != ",").read(one_sensor=one_sensor)


class _Reader:
    def __init__(self, file: Path, reader: Any, known: Known, *, comma: bool) -> None:
        self._file, self._reader, self._known, self._comma = file, reader, known, comma
        self._marks: dict[str, dict[str, str]] = {}
        """By column, where the first number stands with a comma, with a dot, and with one that may part thousands."""
        self._header = [" ".join(written.split()) for written in header_of(reader)]  # spreadsheets break lines in them
        while self._header and not self._header[-1]:  # a spreadsheet's empty columns
            self._header.pop()
        self._places = _places(file, self._header)
        self._times = forecast_times.time_columns(self._places)
        if self._places and not self._times:
            raise _no_times(file, list(self._places))
        self._sensor = next((name for name in _SENSORS if name in self._places), None)
        used = {*self._times, self._sensor}
        self._columns = {name: known.columns.setdefault(name, Column()) for name in self._places if name not in used}

    def read(self, *, one_sensor: bool) -> SensorTable:
        table = SensorTable()
        seen: set[int] = set()
        least = len(self._header)
        for line, cells, last in self._rows():
            if last and len(cells) < least:  # shorter than all: a logger whose power went
                table.cut_off = line
                break
            least = min(least, len(cells))
            if (again := hash(tuple(cells))) in seen:  # cells themselves would take as much memory as the readings
                table.repeated += 1
                continue
            seen.add(again)
            name, row = self._row(line, cells)
            table.sensors.setdefault(self._file.stem if one_sensor or name is None else name, []).append(row)
        for name, rows in table.sensors.items():
            self._known.files[name] = self._file
            self._refuse_again(name, rows, one_sensor=one_sensor)
        return table

    def _rows(self) -> Iterator[tuple[int, list[str], bool]]:
        """The number of its line, its cells, and whether it is the last one."""
        before: tuple[int, list[str]] | None = None
        for cells in self._reader:
            if any(cell.strip() for cell in cells):
                if before is not None:
                    yield (*before, False)
                before = self._reader.line_num, cells
        if before is not None:
            yield (*before, True)

    def _row(self, line: int, cells: list[str]) -> tuple[str | None, Reading]:
        """The sensor, where there is a column for it, and the row."""
        where, width = f"{self._file}, line {line}", len(self._header)
        if any(cell.strip() for cell in cells[width:]):
            raise InputError(
                f"{where}: {len(cells)} cells, and the first line names {width} columns; a comma in a number parts it "
                "in two: put a semicolon between columns, or the number in quotes"
            )
        cells = [*cells, *[""] * (width - len(cells))]
        name = None if self._sensor is None else cells[self._places[self._sensor]].strip()
        if name == "":
            raise InputError(f"{where}: an empty {self._sensor}; each row names its sensor")
        try:
            moment = forecast_times.moment_of({column: cells[self._places[column]] for column in self._times})
            time = forecast_times.seconds_of(moment)
        except (ValueError, OverflowError, OSError) as error:
            expected = "2024-01-31 13:00, or seconds or milliseconds since 1970"
            raise InputError(f"{where}: no time can be read ({error}); expected such as {expected}") from error
        zones = self._known.zones
        if zones.setdefault(moment.tzinfo is not None, where) is where and len(zones) > 1:
            raise InputError(
                f"{zones[False]}: the time has no zone, and that of {zones[True]} has one (seconds since "
                "1970 are UTC); write all with one, or all without, which are then taken as UTC"
            )
        read: dict[str, float] = {}
        for column, counts in self._columns.items():
            if column in forecast_times.NAMES:
                continue
            text = cells[self._places[column]]
            value = self._number(where, column, text.strip())
            if value is None:
                counts.words += 1
                counts.first_word = counts.first_word or f"{where}: {self._header[self._places[column]]} is {text!r}"
            elif abs(value) > _LARGEST:
                name = self._header[self._places[column]]
                raise InputError(
                    f"{where}: {name} is {text!r}, and at most {_LARGEST:.2g} can be read; leave the cell empty where "
                    "that means nothing"
                )
            else:
                counts.numbers += not math.isnan(value)
                read[column] = value
        return name, Reading(line, time, read)

    def _number(self, where: str, column: str, text: str) -> float | None:
        """nan where a reading is missing; None for what is no number at all, such as a wind's name."""
        if text.lower() in _MISSING:
            return math.nan
        written = text
        if self._comma:
            text = (text.replace(".", "") if _THOUSANDS.fullmatch(text) else text).replace(",", ".")
        value = number_of(text)
        if self._comma and value is not None:
            self._refuse_ambiguous(f"{where}: {self._header[self._places[column]]} is {written}", column, written)
        return math.nan if text.lower().strip("+-") in _NO_NUMBERS else value

    def _refuse_ambiguous(self, said: str, column: str, text: str) -> None:
        """1.013 beside 998,5 may be a thousand or a fraction, and so may 1,013 beside 998.5."""
        first = self._marks.setdefault(column, {})
        for mark, other in ((",", "."), (".", ",")):
            if mark in text and not (mark == "." and "," in text):
                first.setdefault(mark, said)
                if _GROUP.fullmatch(text):
                    first.setdefault(f"group{mark}", said)
            if f"group{mark}" in first and other in first:
                raise InputError(
                    f"{first[f'group{mark}']}, which may be a thousand or a fraction beside {first[other]}; take out "
                    "what parts thousands"
                )

    def _refuse_again(self, sensor: str, rows: Sequence[Reading], *, one_sensor: bool) -> None:
        """Readings of one time would be averaged, be they of several sensors or of 24 hours."""
        seen: set[float] = set()
        again = [row.line for row in rows if row.time in seen or seen.add(row.time)]  # type: ignore[func-returns-value]
        if len(again) <= _FEW_AGAIN * len(rows):
            return
        if self._sensor is None:
            why = (
                f", and there is no column {' or '.join(_SENSORS)}: are these several sensors? Name the column so that "
                "tells them apart, or give each a file of its own in a folder"
            )
        elif one_sensor:
            why = (
                ": are these several sensors? In a folder each has a file of its own; several in one file are read "
                "where --data is that file"
            )
        else:
            why = (
                f" of {sensor}: are these several quantities, one below the other? Each has a column of its own, and "
                "each row the date and the hour"
            )
        raise InputError(
            f"{self._file}, line {again[0]}: a time that another row has, as have {len(again)} of {len(rows)}{why}; "
            f"the time is read from {', '.join(self._times)}"
        )


def name_of(written: str) -> str:
    """A column's name, which has no case."""
    name = written.strip().lower()
    return _ALIASES.get(name, name)


def _places(file: Path, header: Sequence[str]) -> dict[str, int]:
    """Where each column is, by its name in lower case; one without a name goes by its number."""
    places: dict[str, int] = {}
    for place, written in enumerate(header):
        name = name_of(written) or f"column {place + 1}"
        if name in places:
            raise InputError(
                f"{file}: columns {places[name] + 1} and {place + 1} ({header[places[name]]!r} and "
                f"{written!r}) are both {name}; rename one of them, or take it out"
            )
        places[name] = place
    return places


def _no_times(file: Path, columns: Sequence[str]) -> InputError:
    between = "; the first line names the columns, with commas, semicolons or tabs between them"
    return InputError(
        f"{file} has no column time, timestamp, datetime, date, nor year, month, day, hour; found "
        f"{', '.join(columns)}{between if len(columns) == 1 else ''}"
    )
