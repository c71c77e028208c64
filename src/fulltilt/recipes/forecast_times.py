"""When a row of a table was read, by the columns that say so.

time | timestamp | datetime | date     2024-01-31 13:00, with T, slashes or a zone as well; 10 digits: seconds since
                                       1970, 13: milliseconds
date + time, date + hour [+ minute]    2024-01-31 and 13:00, or 13; 24 is the end of the day
year + month + day + time, or + hour [+ minute]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

DATE_PARTS: Final = ("year", "month", "day")
NAMES: Final = ("time", "timestamp", "datetime", "date", *DATE_PARTS, "hour", "minute")
"""Of columns that say when; none of them is a quantity."""
_LAYOUTS: Final = (
    ("timestamp",),
    ("datetime",),
    ("date", "time"),
    ("date", "hour", "minute"),
    ("date", "hour"),
    (*DATE_PARTS, "time"),
    ("time",),
    ("date",),
    (*DATE_PARTS, "hour", "minute"),
    (*DATE_PARTS, "hour"),
)
"""The first whose columns are all there: a date beside an hour is only half of the time."""
_UNIX: Final = re.compile(r"(\d{10}|\d{13})([.,]\d+)?")
_TOO_LONG: Final = re.compile(r"\d{9}")
"""What follows eight digits is a separator to `fromisoformat`, be it a digit: 1711126800000 would be in 1711."""
_UTC: Final = re.compile(r"(:\d\d(?:[.,]\d+)?) ?(?:UTC|GMT)$", re.IGNORECASE)
_DATE: Final = re.compile(r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})(?!\d)(?:([ T])(\d)(?=:))?")
"""With what `fromisoformat` does not take: slashes, and single digits."""
_YEAR_LAST: Final = re.compile(r"\d{1,2}([-/.])\d{1,2}\1\d{4}(?!\d)")
_DAY_SECONDS: Final = 24 * 3600


def time_columns(columns: Collection[str]) -> tuple[str, ...]:
    """Those that say when a row was read; none where that can't be known."""
    return next((layout for layout in _LAYOUTS if all(name in columns for name in layout)), ())


def seconds_of(moment: datetime) -> float:
    """Seconds since 1970. A time of no zone is taken as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.timestamp()


def moment_of(cells: Mapping[str, str]) -> datetime:
    """When it was, by the cells of `time_columns`; without a zone where none is written.

    Raises:
        ValueError: no time can be read.
    """
    texts = {name: text.strip() for name, text in cells.items()}
    if "year" in texts:
        year, month, day = (_number(texts.pop(part)) for part in DATE_PARTS)
        return _beside(f"{year:04}-{month:02}-{day:02}", **texts)
    return _whole(*texts.values()) if len(texts) == 1 else _beside(**texts)


def _beside(date: str, time: str | None = None, hour: str | None = None, minute: str | None = None) -> datetime:
    """A date and what is beside it. Where either of them says everything, the other one only repeats it."""
    day = _whole(date)
    if day.time() != datetime.min.time():
        return day
    try:
        return day + _since_midnight(*(text for text in (time, hour, minute) if text is not None))
    except ValueError:
        if time is None:
            raise
        return _whole(time)


def _number(text: str) -> int:
    """Also one that a table has as 2024.0."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(f"{text!r} is no whole number")
    return int(value)


def _whole(text: str) -> datetime:
    unix = _UNIX.fullmatch(text)
    if unix is None:
        if _YEAR_LAST.match(text):
            raise ValueError(f"{text!r}: the year has to come first, or day and month could be mistaken for each other")
        if _TOO_LONG.match(text):
            raise ValueError(f"{text!r} is no date; seconds since 1970 have 10 digits, milliseconds 13")
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return datetime.fromisoformat(_iso(text))
    if len(unix[1]) == 10 and _reads_as_date(unix[1]):
        raise ValueError(f"{text!r} could be a date and its hour, or seconds since 1970")
    seconds = float(text.replace(",", "."))
    return datetime.fromtimestamp(seconds if len(unix[1]) == 10 else seconds / 1000, UTC)


def _iso(text: str) -> str:
    """2024/1/31 9:00 UTC as 2024-01-31 09:00+00:00; anything else as it is."""
    text = _UTC.sub(r"\1+00:00", text)
    if (found := _DATE.match(text)) is None:
        return text
    year, _, month, day, between, hour = found.groups()
    return f"{year}-{month:0>2}-{day:0>2}{f'{between}0{hour}' if hour else ''}{text[found.end() :]}"


def _reads_as_date(digits: str) -> bool:
    """2024010113, which as seconds would be in 2034."""
    try:
        datetime.strptime(digits, "%Y%m%d%H")
    except ValueError:
        return False
    return digits >= "19"


def _since_midnight(*texts: str) -> timedelta:
    """Of "13:30", or of "13" and "30"."""
    parts = [float(part) for text in texts for part in text.split(":")]
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1)[: len(parts)], strict=True))
    if not (all(0 <= part < 60 for part in parts[1:]) and 0 <= parts[0] <= 24 and seconds <= _DAY_SECONDS):
        raise ValueError(f"{':'.join(texts)!r} is no hour of a day")
    return timedelta(seconds=seconds)
