"""What larger batches cost: each side makes as many steps as its batches need for the same samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "quality.py"


def test_both_sides_train_with_the_same_samples_and_other_recipes_stay(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    command = [sys.executable, SCRIPT, "forecast", "--small", "--samples", "960", "--batch", "96", "--json", file]
    subprocess.run(command, check=True, capture_output=True, timeout=200, cwd=tmp_path)
    found = json.loads(file.read_text())
    assert [(case["key"], case["batch_size"], case["steps"]) for case in found["cases"]] == [
        ("before", 32, 30), ("after", 96, 10),
    ]  # fmt: skip
    assert all(0.0 < case["metric"] < 1.0 for case in found["cases"])
    other = {"workload": "video", "key": "before"}
    file.write_text(json.dumps(found | {"cases": [other]}))
    subprocess.run([*command, "--seeds", "1"], check=True, capture_output=True, timeout=200, cwd=tmp_path)
    cases = json.loads(file.read_text())["cases"]
    assert [(case["workload"], case.get("seed")) for case in cases] == [
        ("forecast", 1),
        ("forecast", 1),
        ("video", None),
    ]
