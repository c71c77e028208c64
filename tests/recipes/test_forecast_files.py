"""Readings from CSV files as people have them."""

from __future__ import annotations

import numpy as np
import pytest

from fulltilt.errors import InputError
from fulltilt.recipes.forecast_files import read_readings


def test_a_folder_with_a_file_for_each_sensor(tmp_path):
    (tmp_path / "a.csv").write_text(
        "time,PM2.5,wind\n2024-01-01 00:00,1,5\n2024-01-01 01:00,2,6\n2024-01-01 02:00,3,7\n"
    )
    (tmp_path / "b.csv").write_text("time,PM2.5,wind\n2024-01-01 01:00,20,60\n2024-01-01 02:00,30,70\n")
    found = read_readings(tmp_path)
    assert (found.sensors, found.quantities) == (("a", "b"), ("pm25", "wind"))
    assert found.values.tolist() == [[[2, 20], [6, 60]], [[3, 30], [7, 70]]], "only the hours that both have"


def test_one_file_with_date_parts_words_and_a_counter(tmp_path):
    """As the Beijing multi-site data set has it."""
    path = tmp_path / "all.csv"
    path.write_text(
        "No,year,month,day,hour,PM2.5,wd,station\n"
        "1,2013,3,1,0,4,NNW,Aoti\n2,2013,3,1,1,NA,N,Aoti\n3,2013,3,1,4,16,N,Aoti\n"
        "1,2013,3,1,0,8,NNW,Ding\n2,2013,3,1,1,9,N,Ding\n3,2013,3,1,4,,N,Ding\n"
    )
    found = read_readings(path)
    assert found.quantities == ("pm25",), "a wind's name is no number"
    assert found.values[:, 0].T.tolist() == [[4, 7, 10, 13, 16], [8, 9, 9, 9, 9]], "straight between, then as it was"


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_as_spreadsheets_write_them(tmp_path, separator):
    rows = [("Sensor", "time", "PM2.5"), ("a", "2024-01-01 00:00", "1,5"), ("a", "2024-01-01 01:00", "2.5")]
    (tmp_path / "all.csv").write_text("\n".join(separator.join(row) for row in rows))
    readings = read_readings(tmp_path / "all.csv")
    assert readings.quantities == ("pm25",)
    assert readings.values.ravel().tolist() == [1.5, 2.5]


def test_several_readings_of_an_hour_are_averaged(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x\n2024-01-01T00:05,a,1\n2024-01-01T00:40,a,3\n2024-01-01T01:00+00:00,a,7\n")
    assert read_readings(path).values.ravel().tolist() == [2, 7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,sensor,x\n", "no rows"),
        ("time,x\n2024-01-01,1\n2024-01-01,2\n", "no column sensor or station.*are these several sensors?"),
        ("when,sensor,x\n2024-01-01,a,1\n", r"all\.csv has no column time, timestamp.*; found when, sensor, x$"),
        ("time,sensor,x\nyesterday,a,1\n", r"line 2: no time can be read"),
        ("time,sensor,x\n2024-01-01,a,high\n", "no column of numbers"),
        ("time,sensor,x\n2024-01-01,a,1\n2024-01-02,b,1\n", "no hour that all 2 sensors cover"),
        ("time,sensor,x\n2024-01-01,a,1\n2024-01-03,a,1\n2024-01-02,b,1\n2024-01-03,b,1\n2024-01-04,b,", None),
        ("time|sensor|x\n2024-01-01|a|1\n", r"found time\|sensor\|x; the first line names the columns, with commas"),
        ("time,sensor,x\n2024-01-01,a,1\n2024-01-02,,1\n", r"all\.csv, line 3: an empty sensor"),
        (
            "time,device,x\n" + "2024-01-01,a,1\n2024-01-01,b,1\n" * 2,
            "line 3: a time .* as have 3 of 4",
        ),
        ("time,sensor,x\n2024-01-02,a,\n2024-01-01,a,1\n2024-01-02,b,1\n", "a has no x in the hours"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, says):
    path = tmp_path / "all.csv"
    path.write_text(text)
    if says is None:
        assert np.isfinite(read_readings(path).values).all()
        return
    with pytest.raises(InputError, match=says):
        read_readings(path)


def test_a_table_of_one_sensor(tmp_path):
    """As air quality is published: a row for each hour, in columns of its parts; one of them twice."""
    path = tmp_path / "beijing.csv"
    hours = [(day, hour) for day in range(1, 9) for hour in range(24)]
    rows = [f"{at},2010,1,{day},{hour},{at},{-at}" for at, (day, hour) in enumerate(hours)]
    path.write_text("\n".join(["No,year,month,day,hour,pm2.5,TEMP", *rows, "192,2010,1,8,2,170,-170"]))
    found = read_readings(path)
    assert (found.sensors, found.quantities, found.left_out) == (("beijing",), ("pm25", "temp"), ())
    assert found.values[:, 0, 0].tolist() == [*map(float, range(192))]


def test_what_is_missing_is_counted_and_said_where_it_is_most(tmp_path, caplog):
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x\n2024-01-01 00:00,a,1\n2024-01-01 01:00,a,inf\n2024-01-01 02:00,a,3\n")
    found = read_readings(path)
    assert found.values.ravel().tolist() == [1, 2, 3], "inf is no reading"
    assert found.drawn_share == pytest.approx(1 / 3)
    assert not caplog.records
    path.write_text("time,sensor,x\n2024-01-01,a,1\n2024-01-02,a,3\n")
    read_readings(path)
    assert "23 of 25 readings are missing" in caplog.text


def test_a_word_among_numbers_is_named(tmp_path):
    """It would take the column away, and another one would be forecast in its place."""
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x,y\n2024-01-01 00:00,a,1,1\n\n2024-01-01 01:00,a,error,2\n2024-01-01 02:00,a,3,3\n")
    with pytest.raises(InputError, match=r"line 4: x is 'error', which is no number \(1 such cells, 2 numbers\)"):
        read_readings(path)


def test_columns_that_are_left_out_are_named(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x,wd,silent\n2024-01-01 00:00,a,1,N,\n2024-01-01 01:00,a,2,S,NaN\n")
    found = read_readings(path)
    assert (found.quantities, found.left_out) == (("x",), ("wd", "silent"))


def test_files_of_a_folder_with_capitals_and_hidden_ones(tmp_path):
    (tmp_path / "A.CSV").write_text("time,x\n2024-01-01 00:00,1\n")
    (tmp_path / "._A.csv").write_bytes(b"\x00\xff")
    assert read_readings(tmp_path).sensors == ("A",)


def test_a_table_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "all.csv"
    path.write_bytes("time,sensor,Stärke\n2024-01-01,a,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"all\.csv can't be read as a table .* save it as a \.csv in UTF-8"):
        read_readings(path)


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_readings(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no \.csv"):
        read_readings(tmp_path)
