"""`make test`'s second look: what passes alone is named, what fails twice fails, many are not run again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "again.py"
TESTS = """
def test_passes_alone(): pass
def test_fails(): assert 0
def test_was_fine(): raise SystemExit("it is not run again")
"""

ONCE = """
from pathlib import Path
import pytest

def again(name):
    known = Path(__file__).with_name(name).exists()
    Path(__file__).with_name(name).touch()
    return known

class TestOnce:
    @pytest.mark.parametrize("kind", ["a::b/c.py"])
    def test_fails(self, kind):
        if not again("one"):
            raise AssertionError("the first time")

@pytest.fixture
def prepared():
    if not again("two"):
        raise ValueError("not yet")

def test_is_not_prepared(prepared):
    pass
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


def test_what_an_unsteady_test_said_is_shown_last(tmp_path):
    """Parts that fail at first, in a folder of tests and with parameters, as the first run's report has them."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "test_it.py").write_text(ONCE)
    (option,) = re.findall(r"--junitxml=\S+", (ROOT / "Makefile").read_text())
    first = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", option, "part"]
    assert subprocess.run(first, cwd=tmp_path, check=False, capture_output=True).returncode == 1
    done = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    last = done.stdout.split("Unsteady")[1:]
    assert len(last) == 2
    assert "part/test_it.py::TestOnce::test_fails[a::b/c.py]\n" in last[0]
    assert "AssertionError: the first time" in last[0]
    assert "part/test_it.py::test_is_not_prepared\n" in last[1]
    assert "ValueError: not yet" in last[1]
