"""What says that nothing was read, and what may yet be a reading."""

from __future__ import annotations

import numpy as np
import pytest

from fulltilt.recipes.forecast_files import read_readings


def hours(columns, rows):
    """A table of a row for each hour."""
    stamps = np.datetime64("2024-01-01T00:00") + np.timedelta64(1, "h") * np.arange(len(rows))
    lines = [",".join(map(str, [stamp, *row])) for stamp, row in zip(stamps, rows, strict=True)]
    return "\n".join([f"time,{columns}", *lines]) + "\n"


def test_what_only_says_that_nothing_was_read(tmp_path):
    path = tmp_path / "all.csv"
    rows = [(at, at % 5, at - 10, at % 3 - 1, 990 + at) for at in range(30)]
    rows[3] = rows[9] = (-999, -200, -200, -1, 9999)
    path.write_text(hours("dust,co,temperature,change,pressure", rows))
    found = read_readings(path)
    assert found.values[3, :, 0].tolist() == [2, 2, -8, -1, 992]
    assert found.can_be_target("dust").sum() == 28
    assert found.notes == (
        "2 × -999 in dust: taken as missing",
        "2 × -200 in co: taken as missing",
        "2 × -200 in temperature: taken as missing",
        "2 × 9999 in pressure: taken as missing",
    )


@pytest.mark.parametrize("value", [-999, -9999])
def test_a_single_stand_in_is_enough_to_be_one(tmp_path, value):
    """One of them ruins what is learnt; a single 9999 may be a peak."""
    path = tmp_path / "all.csv"
    path.write_text(hours("dust,peak", [(value, 9999) if at == 3 else (at, at) for at in range(30)]))
    found = read_readings(path)
    assert found.values[3, :, 0].tolist() == [2, 9999]
    assert found.can_be_target("dust").tolist() == [at != 3 for at in range(30)]
    assert found.notes == (
        f"1 × {value} in dust: taken as missing",
        "1 × 9999 in peak, far from all others: where that means nothing, leave it empty",
    )


def test_what_may_be_a_reading_stays_and_is_said(tmp_path):
    path = tmp_path / "all.csv"
    rows = [(40 * at - 200, -200 if at < 2 else 3) for at in range(30)]
    rows[5] = (-200, -200)
    rows[6] = (1, -201)
    path.write_text(hours("power,level", rows))
    found = read_readings(path)
    assert found.missing_share == 0
    assert found.notes == ("2 × -200, its lowest value, in power: where that means nothing, leave it empty",)


def test_what_hides_a_stand_in_is_one_itself(tmp_path):
    """Below and above 0 alike: -999 is no farther from the rest than 9999 is."""
    path = tmp_path / "all.csv"
    path.write_text(hours("temperature", [(-999 if at in {3, 4} else 9999 if at in {7, 8} else at % 40 - 20,)
                                          for at in range(99)]))  # fmt: skip
    assert read_readings(path).notes == (
        "2 × 9999 in temperature: taken as missing",
        "2 × -999 in temperature: taken as missing",
    )


@pytest.mark.parametrize("code", ["32767", "65535", "99999", "9.96921e+36", "1e+20", "999.9", "-99.99", "-1"])
def test_codes_that_are_not_known_stay_and_are_said(tmp_path, code):
    path = tmp_path / "all.csv"
    path.write_text(hours("dust,wind", [(at % 37 / 2, code if 40 <= at < 60 else at % 31) for at in range(200)]))
    found = read_readings(path)
    assert found.missing_share == 0
    where = "the only one below 0" if code[0] == "-" else "far from all others"
    assert found.notes == (f"20 × {code} in wind, {where}: where that means nothing, leave it empty",)


def test_codes_behind_each_other_and_one_that_is_there_once(tmp_path):
    path = tmp_path / "all.csv"
    odd = {20: (32767, -99.99), 21: (32767, -99.99), 22: (65535, 1), 23: (65535, 1), 30: (1, 1e20)}
    path.write_text(hours("dust,wind", [odd.get(at, (at % 37, at % 31)) for at in range(200)]))
    far = "far from all others: where that means nothing, leave it empty"
    assert read_readings(path).notes == (
        f"2 × 65535 in dust, {far}",
        f"2 × 32767 in dust, {far}",
        "2 × -99.99 in wind, the only one below 0: where that means nothing, leave it empty",
        f"1 × 1e+20 in wind, {far}",
    )


def test_peaks_of_dust_and_rain_are_no_codes(tmp_path):
    path = tmp_path / "all.csv"
    for seed in range(20):
        random = np.random.default_rng(seed)
        dust = random.lognormal(3, [0.5, 1.0, 1.5][seed % 3], 2000).round(1)
        rain = np.where(random.random(2000) < 0.9, 0, random.lognormal(0, 1.5, 2000)).round(1)
        noisy = random.normal(1, 0.4, 2000).round(1)
        flag, tips = random.random(2000) < 0.01, 0.2 * (random.random(2000) < 0.02)
        rows = zip(dust, rain, noisy, flag.astype(int), tips, strict=True)
        path.write_text(hours("dust,rain,noisy,flag,tips", rows := [*rows]))
        assert read_readings(path).notes == (), seed
