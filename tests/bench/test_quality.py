"""What recipes reach: both sides train with the same samples, and a larger batch makes fewer steps of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fulltilt.recipes.forecast_data import simulate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "quality.py"
FEW = ("data.args.hours=1200", "training.epochs=2")


def test_both_sides_train_with_the_same_samples_and_other_recipes_stay(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    command = [sys.executable, SCRIPT, "forecast", "--seeds", "0", "--set", *FEW, "--json", file]
    subprocess.run(command, check=True, capture_output=True, timeout=200, cwd=tmp_path)
    found = json.loads(file.read_text())
    sides = [(case["key"], case.get("batch_size")) for case in found["cases"]]
    assert sides == [("the last reading", None), ("before", 32), *[("after", 32), ("after", 96)] * 2]
    before, after, larger, longer, both = (case["steps"] for case in found["cases"][1:])
    assert before == after >= 3 * (larger - 2) > 0
    assert (longer, both) == (4 * after, 4 * larger)
    assert all(0.0 < case["metric"] < 1.0 for case in found["cases"])
    dust = simulate(1200, 8).values[960:, 0].astype(float)  # those to validate with
    missed, spread = ((dust[26:] - of) ** 2 for of in (dust[23:-3], dust[26:].mean(0)))
    assert abs(found["cases"][0]["metric"] - float((1 - missed.sum(0) / spread.sum(0)).mean())) < 1e-4
    other = {"workload": "video", "key": "before"}
    file.write_text(json.dumps(found | {"cases": [other]}))
    command[command.index("0")] = "1"
    subprocess.run(command, check=True, capture_output=True, timeout=200, cwd=tmp_path)
    cases = json.loads(file.read_text())["cases"]
    seeds = [("forecast", None), *[("forecast", 1)] * 5, ("video", None)]
    assert [(case["workload"], case.get("seed")) for case in cases] == seeds
