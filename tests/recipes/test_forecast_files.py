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
    assert found.notes == ("1 of 3 hours left out: b begins 2024-01-01 01:00",)


def test_one_file_with_date_parts_words_and_a_counter(tmp_path):
    """As the Beijing multi-site data set has it."""
    path = tmp_path / "all.csv"
    path.write_text(
        "No,year,month,day,hour,PM2.5,wd,station\n"
        "1,2013,3,1,0,4,NNW,Aoti\n2,2013,3,1,1,NA,N,Aoti\n3,2013,3,1,3,16,N,Aoti\n"
        "1,2013,3,1,0,8,NNW,Ding\n2,2013,3,1,1,9,N,Ding\n3,2013,3,1,3,,N,Ding\n"
    )
    found = read_readings(path)
    assert (found.quantities, found.left_out) == (("pm25",), ("no", "wd")), "a wind's name is no number"
    assert found.values[:, 0].T.tolist() == [[4, 4, 4, 16], [8, 9, 9, 9]], "nothing is known before it is read"
    assert found.read[:, 0].T.tolist() == [[True, False, False, True], [True, True, False, False]]
    assert found.can_be_target("pm25").tolist() == [True, False, False, False]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_as_spreadsheets_write_them(tmp_path, separator):
    rows = [("Sensor", "time", "PM2.5"), ("a", "2024-01-01 00:00", "1,5"), ("a", "2024-01-01 01:00", "2.5")]
    (tmp_path / "all.csv").write_text("\n".join(separator.join(row) for row in rows))
    readings = read_readings(tmp_path / "all.csv")
    assert readings.quantities == ("pm25",)
    assert readings.values.ravel().tolist() == [1.5, 2.5]


def test_several_readings_of_an_hour_are_averaged(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x\n2024-01-01T00:05Z,a,1\n2024-01-01T02:40+02:00,a,3\n2024-01-01T01:00+00:00,a,7\n")
    assert read_readings(path).values.ravel().tolist() == [2, 7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,sensor,x\n", "no rows"),
        ("time,x\n2024-01-01,1\n2024-01-01,2\n", "no column sensor or station.*are these several sensors?"),
        ("when,sensor,x\n2024-01-01,a,1\n", r"all\.csv has no column time, timestamp.*; found when, sensor, x$"),
        ("time,sensor,x\nyesterday,a,1\n", r"line 2: no time can be read"),
        ("time,sensor,x\n2024-01-01,a,high\n", "there is no column of numbers$"),
        (
            "time,sensor,x\n2024-01-01,a,1\n2024-01-02,b,1\n",
            "no hour that all 2 sensors cover: a ends 2024-01-01 00:00, and b begins 2024-01-02 00:00; leave one",
        ),
        (
            "time,sensor,x\n2024-01-01 00,a,1\n2024-01-01 02,a,1\n2024-01-01 01,b,1\n2024-01-01 02,b,1\n"
            "2024-01-01 03,b,",
            None,
        ),
        ("time|sensor|x\n2024-01-01|a|1\n", r"found time\|sensor\|x; the first line names the columns, with commas"),
        ("time,sensor,x\n2024-01-01,a,1\n2024-01-02,,1\n", r"all\.csv, line 3: an empty sensor"),
        (
            "time,device,x\n" + "2024-01-01,a,1\n2024-01-01,b,1\n" * 2,
            "line 3: a time .* as have 1 of 2",
        ),
        ("time,sensor,x\n2024-01-01 01,a,\n2024-01-01 00,a,1\n2024-01-01 01,b,1\n", "a has no x in the hours"),
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
    rows = [f"{at},2010,1,{day},{hour},{2 * at},{-2 * at}" for at, (day, hour) in enumerate(hours)]
    path.write_text("\n".join(["No,year,month,day,hour,pm2.5,TEMP", *rows, "192,2010,1,8,2,340,-340"]))
    found = read_readings(path)
    assert (found.sensors, found.quantities, found.left_out) == (("beijing",), ("pm25", "temp"), ("no",))
    assert found.values[:, 0, 0].tolist() == [*map(float, range(0, 384, 2))]


def test_what_is_missing_is_counted(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,sensor,x\n2024-01-01 00:00,a,1\n2024-01-01 01:00,a,inf\n2024-01-01 02:00,a,3\n")
    found = read_readings(path)
    assert found.values.ravel().tolist() == [1, 1, 3], "inf is no reading"
    assert found.missing_share == pytest.approx(1 / 3)


def test_a_column_that_is_nearly_empty_is_refused_by_name(tmp_path):
    hours = np.datetime64("2024-01-01T00:00") + np.timedelta64(1, "h") * np.arange(100)
    for sensor, every in (("a", 20), ("b", 10)):
        rows = [f"{stamp},{'' if at % every else at},{'' if at % 4 else 1}" for at, stamp in enumerate(hours)]
        (tmp_path / f"{sensor}.csv").write_text("\n".join(["time,lead,x", *rows]))
    with pytest.raises(
        InputError, match=r"2024-01-01 00:00 to 2024-01-05 03:00\), most of lead at a: 95 %\. At most half may be"
    ):
        read_readings(tmp_path)


def test_hours_in_which_not_all_has_been_read_yet(tmp_path):
    path = tmp_path / "all.csv"
    rows = [f"2024-01-01 {hour:02}:00,{sensor},{hour},{'' if (sensor, hour) < ('b', 3) and sensor == 'b' else 1}"
            for hour in range(9) for sensor in "ab"]  # fmt: skip
    path.write_text("\n".join(["time,sensor,x,wind", *rows]))
    found = read_readings(path)
    assert found.values[:, 0, 0].tolist() == [3, 4, 5, 6, 7, 8]
    assert found.notes == ("hours left out at the beginning: 3 (b reads no wind before)",)


def test_a_gap_where_the_first_hours_are_cut_off_is_filled_with_what_was_read_before(tmp_path):
    """Else everything that is learnt from would be no number."""
    (tmp_path / "a.csv").write_text(hours("dust,wind", [("" if 8 <= at <= 12 else at, 1) for at in range(40)]))
    (tmp_path / "b.csv").write_text(hours("dust,wind", [(at, "" if at < 10 else 2) for at in range(40)]))
    found = read_readings(tmp_path)
    assert found.values[:5, 0, 0].tolist() == [7, 7, 7, 13, 14]
    assert np.isfinite(found.values).all()
    assert found.can_be_target("dust")[:4].tolist() == [False, False, False, True]


def hours(columns, rows):
    """A table of a row for each hour."""
    stamps = np.datetime64("2024-01-01T00:00") + np.timedelta64(1, "h") * np.arange(len(rows))
    lines = [",".join(map(str, [stamp, *row])) for stamp, row in zip(stamps, rows, strict=True)]
    return "\n".join([f"time,{columns}", *lines]) + "\n"


@pytest.mark.parametrize("name", ["NO", "Index", ""])
def test_only_what_counts_rows_is_a_counter(tmp_path, name):
    """Nitric oxide is called as the number of a row is."""
    path = tmp_path / "all.csv"
    path.write_text(hours(f"x,{name},y", [(1, at + 7, 2) for at in range(20)]))
    found = read_readings(path)
    called = name.lower() or "column 3"
    assert (found.quantities, found.left_out) == (("x", "y"), (called,))
    for gas in ([5 + at * at % 7 for at in range(20)], [at % 7 for at in range(20)]):
        path.write_text(hours(f"x,{name},y", [(1, value, 2) for value in gas]))
        found = read_readings(path)
        assert (found.quantities, found.left_out) == (("x", called, "y"), ())


def test_a_counter_of_the_file_and_of_each_sensor(tmp_path):
    path = tmp_path / "all.csv"
    rows = [f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00,{sensor},1" for hour in range(100) for sensor in "abc"]
    of_file, of_each = range(300), [at // 3 for at in range(300)]
    anew = [at if at < 200 else at - 200 for at in range(300)]
    thinned = [at + at // 5 for at in range(300)]
    falling, lacking = [300 - at for at in range(300)], ["" if at == 7 else at for at in range(300)]
    every = (of_file, of_each, anew, thinned, falling, lacking)
    for name, called, numbers in (
        *(("No", "no", numbers) for numbers in every),
        *(("", "column 1", numbers) for numbers in every),
    ):
        counted = [f"{number},{row}" for number, row in zip(numbers, rows, strict=True)]
        path.write_text("\n".join([f"{name},time,sensor,x", *counted]))
        assert read_readings(path).left_out == (called,)


@pytest.mark.parametrize(
    ("name", "step"), [("id", 1), ("Row", 2), ("epoch", 3600), ("n", 1), ("observation", -1), ("t", 1)]
)
def test_a_column_that_goes_on_by_ones_is_no_quantity(tmp_path, name, step):
    path = tmp_path / "all.csv"
    path.write_text(hours(f"{name},x,hour_of_day", [(step * at, at % 5, at % 24) for at in range(200)]))
    found = read_readings(path)
    assert (found.quantities, found.left_out) == (("x", "hour_of_day"), (name.lower(),))


def test_who_lacks_what_is_left_out_is_named(tmp_path):
    for sensor, columns in (("a", "pm25,wind,rain"), ("b", "wind,rain"), ("c", "pm25,wind,rain")):
        width = columns.count(",") + 1
        rows = [[*[at % 7] * (width - 1), "" if sensor == "c" else 1] for at in range(30)]
        (tmp_path / f"{sensor}.csv").write_text(hours(columns, rows))
    found = read_readings(tmp_path)
    assert (found.quantities, found.left_out) == (("wind",), ("pm25 (b has none)", "rain (c has none)"))


@pytest.mark.parametrize("value", ["1e39", "-3.5e38"])
def test_what_float32_does_not_hold_is_named(tmp_path, value):
    path = tmp_path / "all.csv"
    path.write_text(hours("x,Wind", [(1, value if at == 7 else at) for at in range(20)]))
    with pytest.raises(InputError, match=rf"all\.csv, line 9: Wind is '{value}', and at most 3\.4e\+38 can be read"):
        read_readings(path)


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


def test_two_files_of_one_name_are_refused(tmp_path):
    """Their readings would be averaged as those of one sensor."""
    for at, name in enumerate(["north.CSV", "north.csv", "North.csv", "south.csv"]):
        (tmp_path / name).write_text(hours("x", [(at,), (at,)]))
    with pytest.raises(InputError, match=r"holds north\.CSV and north\.csv, .*: rename one of them"):
        read_readings(tmp_path)


def test_a_table_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "all.csv"
    path.write_bytes("time,sensor,Stärke\n2024-01-01,a,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"all\.csv can't be read as a table .* save it as a \.csv in UTF-8"):
        read_readings(path)


def test_a_file_without_readings_is_said(tmp_path):
    (tmp_path / "a.csv").write_text(hours("x", [(1,), (2,)]))
    (tmp_path / "b.csv").write_text("time,x\n")
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "d.csv").mkdir()
    found = read_readings(tmp_path)
    assert found.sensors == ("a",)
    assert found.notes == ("b.csv holds no readings and is no sensor", "c.csv holds no readings and is no sensor")


@pytest.mark.parametrize("cut", ["n", "north", "north,2024-01-01 02", "north,2024-01-01 02:00"])
def test_a_last_line_that_is_cut_off(tmp_path, cut):
    path = tmp_path / "all.csv"
    path.write_text(f"sensor,time,x\nnorth,2024-01-01 00:00,1\nnorth,2024-01-01 01:00,2\n{cut}")
    found = read_readings(path)
    assert found.values.ravel().tolist() == [1, 2]
    assert found.notes == ("all.csv, line 4, the last one, is cut off and left out",)


def test_a_last_line_as_long_as_others_is_whole(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("time,x,sky\n2024-01-01 00:00,1,\n2024-01-01 01:00,2\n2024-01-01 02:00,3\n")
    found = read_readings(path)
    assert (found.values.ravel().tolist(), found.notes) == ([1, 2, 3], ())


def test_what_can_not_be_opened_is_named(tmp_path):
    (tmp_path / "gone.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"gone\.csv can't be read \(No such file"):
        read_readings(tmp_path)


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_readings(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no \.csv"):
        read_readings(tmp_path)
