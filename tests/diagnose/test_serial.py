"""A diagnosis as JSON and back; two of them compared."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from fulltilt.diagnose import Outcome
from fulltilt.diagnose.compare import compared
from fulltilt.diagnose.serial import from_json, read, to_json
from fulltilt.errors import InputError

FEW = {"phases": {"data wait": 40}, "loader": {"num_workers": 2}, "loader_rate": 446, "stages": {"item": 4.48}}


def test_there_and_back(planted, tmp_path):
    found = planted(**FEW).diagnose()
    path = tmp_path / "a.json"
    path.write_text(json.dumps(to_json(found), allow_nan=False))
    assert read(path) == found
    # What `fulltilt run` writes has it inside: all there is where nothing paid.
    path.write_text(json.dumps({"plan": None, "diagnosis": to_json(found), "after": None}))
    assert read(path) == found


def test_of_a_run_what_came_out_of_it_is_compared(planted, tmp_path):
    """Its own diagnosis may stem from a busier moment than the one that it is compared with."""
    before, busier = planted(**FEW).diagnose(), planted(phases={"data wait": 200}).diagnose()
    after = Outcome(
        samples_per_second=990.0, settings={"loader.num_workers": 6}, observation=planted().observation(), limit=1016.0
    )
    path = tmp_path / "r.json"
    data = {"plan": {}, "not_tuned": None, "diagnosis": to_json(busier), "after": asdict(after)}
    path.write_text(json.dumps(data))
    assert read(path) == after
    found = compared(before, read(path))
    assert found.labels == ("as it is", "with its plan")
    assert found.speedup == pytest.approx(71.7 / 31.8)
    rows = {row.name: row for row in found.rows}
    assert rows["limit of the step"].values[1] == 1016.0
    assert rows["headroom"].shown == ("56 %", "1.0 %")
    assert rows["headroom"].change == "−55 points"
    assert "loader alone" not in rows
    assert (found.gone, found.new) == ((), ())
    # A plan that was found and not run has the rate of its trial.
    path.write_text(json.dumps({**data, "after": asdict(replace(after, observation=None))}))
    found = compared(before, read(path))
    assert found.rows[0].shown[1] == "990 samples/s"
    assert "step" not in {row.name for row in found.rows}


def test_what_stays_as_it_is_has_no_sign(planted):
    same = planted(**FEW).diagnose()
    assert {row.name: row.change for row in compared(same, same).rows}["headroom"] == "0 points"


def test_a_run_that_measured_nothing_is_said(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"plan": None, "not_tuned": "3 steps were seen", "diagnosis": None, "after": None}))
    with pytest.raises(InputError, match="holds no figures of its run \\(3 steps were seen\\)"):
        read(path)


def test_rates_of_one_rank_are_called_so(planted):
    found = compared(planted().observation(world=2), planted().observation(world=2))
    assert found.rows[0].name == "rate per rank"


def test_a_loss_that_is_no_number_makes_no_broken_json(planted):
    found = planted().diagnose()
    steps = (replace(found.observation.steps[0], loss=float("nan")), *found.observation.steps[1:])
    found = replace(found, observation=replace(found.observation, steps=steps))
    data = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert from_json(data).observation.steps[0].loss is None
    assert from_json(data).observation.steps[1].loss == 1.0


def test_compared(planted):
    before, after = planted(**FEW).diagnose(), planted().diagnose()
    found = compared(before, after)
    assert found.speedup == pytest.approx(71.7 / 31.8)
    assert found.gone == ("too few workers",)
    assert found.new == ()
    rows = {row.name: row for row in found.rows}
    assert rows["rate"].change == "2.25×"
    assert rows["data wait"].shown == ("40 ms", "100 µs")
    assert rows["headroom"].change == "−55 points"
    back = compared(after.observation, before)
    assert back.speedup == pytest.approx(31.8 / 71.7)
    assert (back.gone, back.new) == ((), ())
    assert "headroom" not in {row.name for row in back.rows}


def test_steps_are_compared_where_samples_are_not_counted(planted):
    first = planted().observation()
    second = replace(first, steps=tuple(replace(step, samples=None) for step in first.steps))
    found = compared(first, second)
    assert found.speedup == pytest.approx(1)
    assert found.rows[0].shown == ("31.4 steps/s", "31.4 steps/s")
