"""`make test`'s second look: what passes alone is named, what fails twice fails, many are not run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "again.py"
TESTS = """
def test_passes_alone(): pass
def test_fails(): assert 0
def test_was_fine(): raise SystemExit("it is not run again")
"""


@pytest.mark.parametrize(
    ("failed", "status", "said"),
    [
        (["test_it.py::test_passes_alone"], 0, "Unsteady, failed beside other tests and passed alone: test_it.py"),
        (["test_it.py::test_passes_alone", "test_it.py::test_fails"], 1, "1 failed, 1 passed"),
        ([f"test_it.py::test_{number}" for number in range(4)], 1, "4 tests failed: they are not run again"),
        ([], 1, "0 tests failed"),
    ],
    ids=["unsteady", "broken", "many", "none"],
)
def test_what_failed_is_run_once_more(tmp_path, failed, status, said):
    (tmp_path / "test_it.py").write_text(TESTS)
    cache = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(dict.fromkeys(failed, True)))
    done = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stdout
    assert said in done.stdout
