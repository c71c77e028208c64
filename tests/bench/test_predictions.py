"""The benchmark of forecasts: its reckoning, and its pairs of scripts; what they come to is measured, not tested."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fulltilt.bench.predictions import Forecast, measure, to_json
from fulltilt.errors import InputError

FOLDER = Path(__file__).parents[1] / "diagnose" / "scripts"


def test_points_are_of_the_steps_time() -> None:
    one = Forecast(script="x", cause="slow-disk", predicted=1.5, measured=7 / 3)
    assert one.points == pytest.approx(10.0)  # 60 % are saved where 70 % were predicted
    assert [target.met for target in one.targets] == [True]
    far = Forecast(script="x", cause="slow-disk", predicted=0.1, measured=1.0)
    assert [target.met for target in far.targets] == [False]
    unknown = Forecast(script="x", cause="memory-growth", predicted=None, measured=None)
    assert unknown.points is None
    first, second, third = to_json([one, far, unknown])["cases"]
    assert (first["targets"][0]["words"], second["targets"][0]["met"]) == ("≤ 15 points", False)
    assert third["targets"] is None, "nothing was predicted"


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "gpu"], ids=["cpu", "gpu"])
def test_every_fixed_script_is_one_that_is_there_and_differs_little(folder: Path) -> None:
    fixed = sorted((folder / "fixed").glob("*.py"))
    assert fixed
    for path in fixed:
        before, after = ((one / path.name).read_text() for one in (folder, folder / "fixed"))
        ast.parse(after)
        lines = set(after.splitlines()) ^ set(before.splitlines())
        assert 0 < len(lines) <= 20, path.name


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no script at all"):
        measure(tmp_path)
    with pytest.raises(InputError, match="no script nothing; there are"):
        measure(FOLDER, names=["nothing"])
