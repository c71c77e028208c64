"""When a row was read, from the columns that people have for it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fulltilt.recipes.forecast_times import moment_of, seconds_of, time_columns

ONE_O_CLOCK = datetime(2024, 1, 31, 13, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "cells",
    [
        {"time": "2024-01-31 13:00"},
        {"date": "2024-01-31T13:00:00Z"},
        {"time": "2024/01/31 13:00"},
        {"time": "2024-1-31 13:00:00"},
        {"time": "2024-01-31 13:00:00 UTC"},
        {"time": "2024-01-31 13:00 GMT"},
        {"date": "2024/1/31", "time": "13:00"},
        {"timestamp": "1706706000"},
        {"timestamp": "1706706000.0"},
        {"time": "1706706000000"},
        {"date": "2024-01-31", "hour": "13"},
        {"date": "20240131", "hour": "13.0"},
        {"date": "2024-01-31 00:00:00", "hour": "13:00"},
        {"date": "2024-01-31 13:00", "hour": "13"},
        {"date": "2024-01-31", "time": "13:00:00"},
        {"date": "2024-01-31", "time": "2024-01-31 13:00"},
        {"date": "2024-01-31", "hour": "13", "minute": "0"},
        {"year": "2024", "month": "1", "day": "31", "hour": "13"},
        {"year": "2024", "month": "1", "day": "31", "hour": "13", "minute": "0"},
        {"year": "2024.0", "month": "1.0", "day": "31.0", "hour": "13.0"},
        {"year": "2024", "month": "1", "day": "31", "time": "13:00"},
    ],
)
def test_an_hour_however_it_is_written(cells):
    assert time_columns([*reversed(cells), "pm25"]) == tuple(cells)
    assert seconds_of(moment_of(cells)) == ONE_O_CLOCK


def test_single_digits():
    assert moment_of({"time": "2024/1/5 0:00"}) == moment_of({"time": "2024-01-05"})
    assert moment_of({"time": "2024-1-5T7:30Z"}) == moment_of({"time": "2024-01-05 07:30+00:00"})


def test_the_last_hour_of_a_day_may_be_24():
    assert moment_of({"date": "2024-01-31", "hour": "24"}) == moment_of({"time": "2024-02-01"})


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"time": "17111268000000"}, "seconds since 1970 have 10 digits, milliseconds 13"),
        ({"time": "202401311300"}, "is no date"),
        ({"time": "2024013113"}, "could be a date and its hour, or seconds since 1970"),
        ({"time": "01/02/2024 13:00"}, "'01/02/2024 13:00': the year has to come first"),
        ({"date": "31.1.2024", "time": "13:00"}, "'31.1.2024': the year has to come first"),
        ({"time": "2024/1-31 13:00"}, "Invalid isoformat"),
        ({"time": "2024-01-31 UTC"}, "Invalid isoformat"),
        ({"time": ""}, "Invalid isoformat"),
        ({"date": "2024-01-31", "hour": "25"}, "'25' is no hour of a day"),
        ({"date": "2024-01-31", "hour": "12", "minute": "60"}, "'12:60' is no hour of a day"),
        ({"date": "2024-01-31", "hour": "nan"}, "is no hour of a day"),
        ({"date": "2024-01-31", "time": "noon"}, "'noon'"),
        ({"year": "2024.5", "month": "1", "day": "31", "hour": "13"}, "'2024.5' is no whole number"),
        ({"year": "2024", "month": "13", "day": "31", "hour": "13"}, "month must be in 1..12"),
    ],
)
def test_a_time_is_never_misread(cells, says):
    with pytest.raises(ValueError, match=says):
        moment_of(cells)


def test_a_date_beside_an_hour_is_half_of_the_time():
    assert time_columns(["hour", "date", "x"]) == ("date", "hour")
    assert time_columns(["time", "date", "x"]) == ("date", "time")
    assert time_columns(["datetime", "date", "hour"]) == ("datetime",)
    assert time_columns(["year", "month", "day"]) == ()
