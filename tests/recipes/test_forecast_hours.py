"""Hours that all sensors cover, and rows that are no hourly readings."""

from __future__ import annotations

import numpy as np
import pytest

from fulltilt.errors import InputError
from fulltilt.recipes import forecast_files
from fulltilt.recipes.forecast_files import read_readings


def hours(columns, rows):
    """A table of a row for each hour."""
    stamps = np.datetime64("2024-01-01T00:00") + np.timedelta64(1, "h") * np.arange(len(rows))
    lines = [",".join(map(str, [stamp, *row])) for stamp, row in zip(stamps, rows, strict=True)]
    return "\n".join([f"time,{columns}", *lines]) + "\n"


def test_a_short_sensor_cuts_the_others_and_is_named(tmp_path):
    for sensor, begin, end in (("a", 0, 90), ("b", 10, 100), ("c", 20, 60)):
        rows = hours("x", [(at % 7,) for at in range(100)]).splitlines()
        (tmp_path / f"{sensor}.csv").write_text("\n".join([rows[0], *rows[1 + begin : 1 + end]]))
    found = read_readings(tmp_path)
    assert len(found.values) == 40
    assert found.notes == (
        "60 of 100 hours left out: c begins 2024-01-01 20:00, c ends 2024-01-03 11:00",
    )  # of those in which anything was read


@pytest.mark.parametrize(
    ("apart", "says"),
    [
        (24, "rows of each sensor are 24 hours apart, so these look like daily readings; the recipe is hourly"),
        (
            2,
            "rows of each sensor are 2 hours apart, so these look like readings of every 2 hours; the recipe is hourly",
        ),
        (
            3,
            "rows of each sensor are 3 hours apart, so these look like readings of every 3 hours; the recipe is hourly",
        ),
    ],
)
def test_readings_that_are_not_hourly_are_refused(tmp_path, apart, says):
    path = tmp_path / "all.csv"
    stamps = np.datetime64("2024-01-01T00:00") + np.timedelta64(apart, "h") * np.arange(100)
    path.write_text("\n".join(["time,x", *(f"{stamp},{at % 7}" for at, stamp in enumerate(stamps))]))
    with pytest.raises(InputError, match=says):
        read_readings(path)


@pytest.mark.parametrize("year", [1970, 2099, 9024])
def test_a_time_far_from_all_others_is_named_before_memory_is_taken(tmp_path, monkeypatch, year):
    path = tmp_path / "all.csv"
    rows = hours("x", [(at % 7,) for at in range(200)]).splitlines()
    path.write_text("\n".join([*rows[:100], f"{year}-01-01 00:00,1", *rows[100:]]))
    monkeypatch.delattr(forecast_files, "_grid")
    says = (
        rf"all\.csv, line 101: the time is {year}-01-01 00:00, far from all others \(2024-01-01 00:00 to 2024-01-09 07"
    )
    with pytest.raises(InputError, match=says):
        read_readings(path)


def test_hours_of_which_most_have_no_row(tmp_path, monkeypatch):
    path = tmp_path / "all.csv"
    rows = hours("x", [(at % 7,) for at in range(2000)]).splitlines()
    path.write_text("\n".join([*rows[:300], *rows[-300:]]))
    monkeypatch.delattr(forecast_files, "_grid")
    with pytest.raises(InputError, match=r"of 2,000 hours from 2024-01-01 00:00 to \S+ 07:00 only 599 have a row"):
        read_readings(path)
