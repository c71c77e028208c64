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


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["998,5", "1.013"], "line 3: Pressure is 1.013, which may be a .* beside \\S+, line 2: Pressure is 998,5"),
        (["1.013", "998,5"], "line 2: Pressure is 1.013, which may be a .* beside \\S+, line 3: Pressure is 998,5"),
        (["1.013,5", "1.013"], "line 3: Pressure is 1.013, which may be a thousand"),
        (["998.5", "1,013"], "line 3: Pressure is 1,013, which may be a thousand or a fraction beside"),
        (["1_000", "2"], r"line 2: Pressure is '1_000', which is no number"),
        (["１２", "2"], r"line 2: Pressure is '１２', which is no number"),
        (["1e400", "2"], r"line 2: Pressure is '1e400', and at most 3\.4e\+38 can be read"),
    ],
)  # fmt: skip
def test_a_number_is_never_misread(tmp_path, cells, says):
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["time;Pressure", *(f"2024-01-01 0{at}:00;{cell}" for at, cell in enumerate(cells))]))
    with pytest.raises(InputError, match=says):
        read_readings(path)


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["998,5", "1013"], [998.5, 1013]),
        (["998,5", "1.013,5"], [998.5, 1013.5]),
        (["0.125", "0,5"], [0.125, 0.5]),
        (["1.013", "998.5"], [1.013, 998.5]),
        (["1,013", "998,5"], [1.013, 998.5]),
    ],
)
def test_decimal_commas(tmp_path, cells, values):
    path = tmp_path / "all.csv"
    path.write_text("\n".join(["time;x", *(f"2024-01-01 0{at}:00;{cell}" for at, cell in enumerate(cells))]))
    assert read_readings(path).values.ravel().tolist() == pytest.approx(values)


@pytest.mark.parametrize("missing", ["n/a", "N/A", "#N/A", "-", "--", " - "])
def test_what_is_written_for_a_reading_that_is_missing(tmp_path, missing):
    path = tmp_path / "all.csv"
    path.write_text(f"time,x\n2024-01-01 00:00,1\n2024-01-01 01:00,{missing}\n2024-01-01 02:00,3\n")
    assert read_readings(path).read.ravel().tolist() == [True, False, True]


def test_a_file_that_was_joined_twice(tmp_path):
    path = tmp_path / "all.csv"
    rows = [f"2024-01-01 {hour:02}:00,{hour % 5}" for hour in range(24)]
    path.write_text("\n".join(["time,x", *rows, *rows]))
    found = read_readings(path)
    assert found.values.ravel().tolist() == [hour % 5 for hour in range(24)]
    assert found.notes == ("all.csv: 24 rows that repeat another one exactly are left out",)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_a_table_as_excel_saves_it_in_unicode(tmp_path, encoding):
    """With a mark of the order of bytes at its beginning, and here an empty line."""
    path = tmp_path / "all.csv"
    start = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes((start + "\n\ntime\tStärke\n2024-01-01 00:00\t1,5\n2024-01-01 01:00\tx\n").encode(encoding))
    with pytest.raises(InputError, match="line 5: Stärke is 'x', which is no number"):
        read_readings(path)
