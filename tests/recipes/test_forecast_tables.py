"""Tables of readings: names of columns, times of rows."""

from __future__ import annotations

import pytest

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_files import read_readings

DAY = [f"{hour},{hour}" for hour in range(24)]


def test_columns_that_differ_in_a_dot_are_two(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,PM1.0,PM10,PM2.5\n2024-01-01 00:00,1,10,2.5\n2024-01-01 01:00,1,10,2.5\n")
    found = read_readings(path)
    assert found.quantities == ("pm1.0", "pm10", "pm25")
    assert found.values[0, :, 0].tolist() == [1, 10, 2.5]


@pytest.mark.parametrize("names", ["Wind,wind", "x,x", "PM2.5,pm25", "PM2_5,PM25"])
def test_two_columns_of_one_name_are_refused(tmp_path, names):
    path = tmp_path / "all.csv"
    path.write_text(f"time,{names}\n2024-01-01 00:00,1,2\n")
    first, second = names.split(",")
    folded = first.lower().replace(".", "").replace("_", "")
    with pytest.raises(InputError, match=rf"columns 2 and 3 \('{first}' and '{second}'\) are both {folded}; rename"):
        read_readings(path)


@pytest.mark.parametrize("when", ["hour", "time"])
def test_a_date_with_an_hour_beside_it(tmp_path, when):
    for sensor in "ab":
        rows = [f"2024-01-{day:02},{row}" for day in (1, 2) for row in DAY]
        (tmp_path / f"{sensor}.csv").write_text("\n".join([f"date,{when},x", *rows]))
    found = read_readings(tmp_path)
    assert found.values[:, 0].T.tolist() == [[*range(24)] * 2] * 2
    path = tmp_path / "all.csv"
    rows = [f"{sensor},2024-01-01,{row}" for row in DAY for sensor in "ab"]
    path.write_text("\n".join([f"station,date,{when},x", *rows]))
    found = read_readings(path)
    assert (found.sensors, found.left_out) == (("a", "b"), ())
    assert found.values[:, 0].T.tolist() == [[*range(24)]] * 2


def test_a_time_of_several_rows_is_refused_in_every_layout(tmp_path):
    rows = [f"2024-01-0{1 + at // 24},{row}" for at, row in enumerate(DAY * 2)]
    (tmp_path / "a.csv").write_text("\n".join(["date,o'clock,x", *rows]))
    with pytest.raises(InputError, match=r"a\.csv, line 3: a time that another row has, as have 46 of 48.*from date"):
        read_readings(tmp_path)
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["sensor,date,o'clock,x", *(f"north,{row}" for row in rows)]))
    with pytest.raises(InputError, match="of north: are these several quantities, one below the other"):
        read_readings(path)
    (tmp_path / "a.csv").write_text("\n".join(["time,station,x", *("2024-01-01,a,1", "2024-01-01,b,2")]))
    path.unlink()
    with pytest.raises(InputError, match=r"are these several sensors\? In a folder each has a file of its own"):
        read_readings(tmp_path)


def test_times_of_a_row_that_are_not_needed_are_named(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,hour,x\n2024-01-01 00:00,0,1\n2024-01-01 01:00,1,2\n")
    assert read_readings(path).left_out == ("hour",)


def test_rows_of_more_cells_than_the_header_has(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,x\n2024-01-01 00:00,1,5\n")
    with pytest.raises(InputError, match="line 2: 3 cells, and the first line names 2 columns; a comma in a number"):
        read_readings(path)


def test_empty_columns_and_rows_of_a_spreadsheet(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,x,,\n2024-01-01 00:00,1,,\n2024-01-01 01:00,2\n,,,\n,,,\n")
    found = read_readings(path)
    assert found.values.ravel().tolist() == [1, 2]
    assert (found.left_out, found.notes) == ((), ())


def test_unix_times(tmp_path):
    path = tmp_path / "all.csv"
    for unit in (1, 1000):
        rows = [f"{(1711126800 + 3600 * at) * unit},{at}" for at in range(5)]
        path.write_text("\n".join(["time,x", *rows]))
        assert read_readings(path).values.ravel().tolist() == [0, 1, 2, 3, 4]


def test_spaces_after_the_commas(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text('time, "pm25", "wind"\n"2024-01-01 00:00", "1", 5\n"2024-01-01 01:00", "2", 6\n')
    found = read_readings(path)
    assert (found.quantities, found.values[:, :, 0].tolist()) == (("pm25", "wind"), [[1, 5], [2, 6]])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_line_breaks_in_names_of_columns(tmp_path, separator):
    path = tmp_path / "all.csv"
    rows = ['"\ntime"', '"PM2.5\n(µg/m³,\u00a0dry)"', "x"], ["2024-01-01 00:00", "1", "2"]
    path.write_text("\n".join(separator.join(row) for row in rows))
    assert read_readings(path).quantities == ("pm2.5 (µg/m³, dry)", "x")


@pytest.mark.parametrize("zoned", ["2024-01-01 00:00+02:00", "2024-01-01T00:00Z", "1704067200"])
def test_times_with_and_without_a_zone_are_not_mixed(tmp_path, zoned):
    """Those without one would be taken as UTC, and so be hours off."""
    (tmp_path / "a.csv").write_text(f"time,x\n{zoned},1\n")
    (tmp_path / "b.csv").write_text("time,x\n2024-01-01 00:00,1\n")
    with pytest.raises(
        InputError, match=r"b\.csv, line 2: the time has no zone, and that of \S+a\.csv, line 2 has one"
    ):
        read_readings(tmp_path)
    (tmp_path / "b.csv").write_text(f"time,x\n2024-01-01 00:00,1\n{zoned},1\n")
    with pytest.raises(
        InputError, match=r"b\.csv, line 2: the time has no zone, and that of \S+b\.csv, line 3 has one"
    ):
        read_readings(tmp_path / "b.csv")
