"""Forecast: what is generated can be learnt, windows don't leak, before and after learn the same."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import asdict
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torchmetrics import R2Score

from fulltilt.errors import InputError
from fulltilt.feed import feed
from fulltilt.recipes import forecast, forecast_files
from fulltilt.recipes.catalog import RECIPES
from fulltilt.recipes.forecast import Scaling, SensorCnn, WindowDataset, latest, windows
from fulltilt.recipes.forecast_data import Readings, simulate
from fulltilt.recipes.forecast_files import read_readings
from fulltilt.recipes.plain import train_plainly
from fulltilt.train.build import make_trainer
from fulltilt.tune import settle_batch_size

SMALL = {"hours": 400, "sensors": 5, "window": 16, "horizon": 3}


def test_wind_carries_dust_along_the_valley():
    found = simulate(3000, 10, seed=3)
    assert np.array_equal(found.values, simulate.__wrapped__(3000, 10, seed=3).values)
    assert not np.array_equal(found.values, simulate(3000, 10, seed=4).values)
    dust, wind = found.values[:, 0], found.values[:, 1].mean(1)
    rise = np.diff(dust, axis=0)

    def follows(hours, upwind):
        """How much an hour's rise at a sensor goes with how much more dust its neighbour had."""
        return np.corrcoef((upwind - dust[:-1, 1:-1])[hours].ravel(), rise[:, 1:-1][hours].ravel())[0, 1]

    up, down = wind[1:] > 6, wind[1:] < -6
    assert follows(up, dust[:-1, :-2]) > follows(up, dust[:-1, 2:]) + 0.2
    assert follows(down, dust[:-1, 2:]) > follows(down, dust[:-1, :-2]) + 0.2


def test_a_window_and_its_target():
    inputs, targets = windows("train", **SMALL)
    values = simulate(400, 5).values[:320]
    scaled = (values - values.mean((0, 2), keepdims=True)) / values.std((0, 2), keepdims=True)
    assert inputs.shape == (320 - 16 - 3 + 1, 4, 16, 5)
    assert len(inputs) == len(targets)
    for at in (0, 7, len(inputs) - 1):
        assert np.allclose(inputs[at], scaled[at : at + 16].swapaxes(0, 1), atol=1e-5)
        assert np.allclose(targets[at], scaled[at + 16 + 3 - 1, 0], atol=1e-5)
    assert inputs.untyped_storage().nbytes() <= values.nbytes * 400 / 320, "views, not copies"


def test_no_hour_is_in_both_parts():
    training, held_out = windows("train", **SMALL), windows("val", **SMALL)
    rows = [
        {row.numpy().tobytes() for row in torch.cat([part[0].movedim(2, 1).flatten(0, 1)]).flatten(1)}
        for part in (training, held_out)
    ]
    assert len(rows[0]) > 250
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("side", ["before", "after"])
def test_what_is_said_of_training_holds_for_validation(side, tmp_path, monkeypatch):
    """The last hour for training comes before the first for validation, and both parts forecast one quantity."""
    monkeypatch.chdir(tmp_path)
    config = RECIPES["forecast"].config(side, ["data.args.val_share=0.1", "data.args.target=wind"], small=True)
    train, val = (windows(**args) for args in (config.data.args, config.data.full_val_args))
    whole = 3000 - 2 * (24 + 3 - 1)  # windows of 24 hours with a target 3 hours on, in two parts
    assert len(train[0]) + len(val[0]) == whole
    assert torch.equal(val[1], windows(**{**config.data.args, "split": "val"})[1])


def test_both_sides_have_the_same_samples():
    inputs, targets = windows("val", **SMALL)
    plain = WindowDataset("val", **SMALL)
    fed = next(iter(feed((inputs, targets), batch_size=len(inputs), device="cpu")))
    assert len(plain) == len(inputs)
    for at, (window, target) in enumerate(plain):
        assert torch.equal(window, fed[0][at])
        assert torch.equal(target, fed[1][at])


def test_readings_of_ones_own(tmp_path):
    made = simulate(200, 3)
    for place, sensor in enumerate(made.sensors):
        with (tmp_path / f"{sensor}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["time", *made.quantities])
            for hour, values in enumerate(made.values[:, :, place]):
                stamp = np.datetime64("2024-01-01T00:00") + np.timedelta64(hour, "h")
                rows.writerow([stamp, *(repr(float(value)) for value in values)])
    own = windows("train", path=str(tmp_path), window=16, horizon=3)
    expected = windows("train", hours=200, sensors=3, window=16, horizon=3)
    assert len(expected)
    for found, wanted in zip(own, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def written(path, values, **options):
    """A table with a row for each hour; what is nan is not read."""
    stamps = np.datetime64("2024-01-01T00:00") + np.timedelta64(1, "h") * np.arange(len(values))
    rows = [f"{stamp},{'' if np.isnan(value) else value}" for stamp, value in zip(stamps, values, strict=True)]
    path.write_text("\n".join(["time,x", *rows]))
    return {"path": str(path), "target": "x"} | options


def test_what_was_not_read_is_no_target_and_predicts_nothing(tmp_path):
    """Of noise nothing can be known before: drawn between readings, it would be seen in those around it."""
    noise = np.random.default_rng(0).normal(size=4000)
    noise[1::2] = np.nan
    options = written(tmp_path / "noise.csv", noise, window=16, horizon=3)
    (inputs, targets), (held_out, wanted) = windows("train", **options), windows("val", **options)
    assert len(inputs) == (3200 - 16 - 3 + 1) // 2
    scale = np.nanstd(noise[:3200])
    read = torch.tensor(noise[18:3200:2] / scale, dtype=torch.float32)
    torch.testing.assert_close(targets[:, 0], read, atol=0.05, rtol=0)
    weights = torch.linalg.lstsq(inputs.flatten(1), targets).solution
    assert float(R2Score()(held_out.flatten(1) @ weights, wanted)) < 0.02


def test_a_window_sees_nothing_that_is_read_later(tmp_path):
    values = np.arange(400.0) % 11
    values[100:130] = np.nan
    options = written(tmp_path / "all.csv", values, window=16, horizon=3)
    before = windows("train", **options)
    values[130:140] += 1000
    after = windows("train", **written(tmp_path / "all.csv", values, window=16, horizon=3))
    gap = [at for at in range(320 - 18) if not 100 <= at + 18 < 130]
    assert len(before[0]) == len(after[0]) == len(gap)
    known = [row for row, at in enumerate(gap) if at + 16 <= 130]
    for found in (before, after):
        flat = found[0][known].flatten(1)
        assert torch.equal(flat[-1], flat[-1, :1].expand_as(flat[-1])), "all of it is the last reading before the gap"


def test_readings_are_read_once_until_a_file_changes(tmp_path, monkeypatch):
    read = Mock(wraps=read_readings)
    monkeypatch.setattr(forecast_files, "read_readings", read)
    folder = tmp_path / "readings"
    folder.mkdir()
    values = np.arange(400.0) % 7
    options = written(folder / "a.csv", values, window=16, horizon=3) | {"path": str(folder)}
    before = windows("train", **options)[0]
    windows("val", **options)
    assert read.call_count == 1
    changed = (folder / "a.csv").stat().st_mtime_ns + 1
    written(folder / "a.csv", values[::-1])
    os.utime(folder / "a.csv", ns=(changed, changed))
    assert not torch.equal(windows("train", **options)[0], before)
    written(folder / "b.csv", values)
    assert windows("val", **options)[0].shape[-1] == 2
    assert read.call_count == 3


def test_how_much_copies_take_is_said(tmp_path, caplog):
    values = np.arange(400.0) % 7
    values[100] = np.nan
    with caplog.at_level("INFO", "fulltilt.recipes"):
        inputs, _ = windows("train", **written(tmp_path / "all.csv", values, window=16, horizon=3))
    assert inputs.nbytes == 301 * 16 * 4
    assert "301 of 302 windows for train have a target that was read; copies of them take 19.3 kB" in caplog.text


@pytest.mark.parametrize("always", [0, 0.1, 1013.25])
def test_what_never_changes_in_training_is_not_blown_up_in_validation(monkeypatch, always):
    """No rain until the last fifth: divided by next to nothing, it drowned everything else."""
    values = np.full((40_000, 2, 32), always, float)
    values[:32_000:7] *= 1 + 1e-7  # what float32 makes of readings that are alike
    values[35_000:] += 3
    still = Readings(values=values.astype(np.float32), quantities=("x", "y"), sensors=("",) * 32)
    monkeypatch.setattr(forecast, "simulate", lambda *_: still)
    (inputs, _), (held_out, _) = (windows(split, target="x", window=1) for split in ("train", "val"))
    assert float(inputs.abs().max()) < 0.001
    assert float(held_out.max()) == pytest.approx(3, abs=0.001)


def test_a_unit_in_which_all_is_small_is_scaled(tmp_path):
    """Dust in kg/m³."""
    values = np.arange(400.0) % 11
    small, large = (windows("train", **written(tmp_path / f"{unit}.csv", values * unit))[0] for unit in (1e-9, 1))
    torch.testing.assert_close(small, large)


def test_windows_without_a_target_that_was_read(tmp_path):
    values = np.arange(400.0) % 11
    values[320:] = np.nan
    options = written(tmp_path / "all.csv", values, window=16, horizon=3)
    assert len(windows("train", **options)[0]) == 320 - 18
    with pytest.raises(
        InputError, match=r"no window for val has a target: .* all sensors read x\. all lacks most: 20 %"
    ):
        windows("val", **options)


def test_what_is_odd_in_readings_is_said_once(tmp_path, caplog):
    values = np.arange(400.0) % 11
    values[[7, 9]] = -999
    options = written(tmp_path / "all.csv", values, window=16, horizon=3)
    for split in ("train", "val"):
        windows(split, **options)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["2 × -999 in x: taken as missing"]


def test_the_newest_window_is_scaled_as_those_to_train_on():
    """Its target would be read after the last hour; what comes out is in the target's own unit."""
    (inputs, scaling), (held_out, targets) = latest(**SMALL), windows("val", **SMALL)
    values = simulate(400, 5).values
    assert inputs.shape == (1, 4, 16, 5)
    assert torch.equal(inputs[0, :, : 16 - 3], held_out[-1, :, 3:]), "three hours after the last one with a target"
    torch.testing.assert_close(scaling.of_target(targets[-1]), torch.from_numpy(values[-1, 0]))
    _, of_wind = latest(**SMALL, target="wind")
    torch.testing.assert_close(of_wind.of_target(inputs[0, 1]), torch.from_numpy(values[-16:, 1]))


def test_a_scaling_that_is_kept_is_that_of_new_readings(tmp_path):
    values = np.arange(400.0) % 11
    options = written(tmp_path / "all.csv", values, window=16, horizon=3)
    before = latest(**options)[1]
    after = written(tmp_path / "all.csv", np.append(values, 100 * values), window=16, horizon=3)
    kept = Scaling(**json.loads(json.dumps(asdict(before))))
    inputs, scaling = latest(**after, scaling=kept)
    assert latest(**after)[1] != before
    torch.testing.assert_close(before.of_target(inputs[0, 0, :, 0]), torch.from_numpy(100 * values[-16:]).float())
    assert scaling is kept
    with pytest.raises(InputError, match=r"the scaling is of pm25, wind, .*, and the readings have x; they must be"):
        latest(**after, scaling=latest(**SMALL)[1])


@pytest.mark.parametrize("wrong", [{"window": 401}, {"window": 0}, {"horizon": 0}])
def test_no_newest_window(wrong):
    with pytest.raises(InputError, match="of 400 hours; both are at least 1"):
        latest(**SMALL | wrong)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"split": "test"}, "split is 'test'"),
        ({"window": 90}, "hold no window of 90"),
        ({"horizon": 0}, "both are at least 1"),
        ({"target": "ozone"}, "the readings have pm25, wind"),
        ({"val_share": 1.0}, "between 0 and 1"),
        ({"sensors": 1}, "at least 2"),
    ],
)
def test_what_is_wrong_is_named(changes, says):
    with pytest.raises(InputError, match=says):
        windows(**({"split": "val"} | SMALL | changes))


def test_a_window_that_can_not_be_halved():
    with pytest.raises(InputError, match="multiple of 8"):
        SensorCnn(5, 20)


def test_it_learns_before_and_after(tmp_path, monkeypatch):
    """R² well above that of saying that all stays as it is; both sides within 0.03 of each other."""
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["forecast"]
    after = make_trainer(recipe.config(small=True)).fit().last[recipe.metric]
    before = train_plainly(recipe.config("before", small=True)).last[recipe.metric]
    inputs, targets = windows(**recipe.config(small=True).data.full_val_args)
    unchanged = float(R2Score()(inputs[:, 0, -1], targets))
    assert min(before, after) >= recipe.wanted
    assert unchanged < recipe.wanted - 0.15
    assert abs(before - after) < 0.03


def test_the_batch_size_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["forecast"]
    assert recipe.config().data.batch_size == "auto"
    few = ["data.args={split: train, hours: 160, sensors: 4, window: 8}", "model.args={sensors: 4, window: 8}"]
    config = recipe.config("after", [*few, "data.batch_size=auto", "model.args.widths=[8]"], small=True)
    assert 32 <= settle_batch_size(config).data.batch_size <= 115, "no more than there are windows"
