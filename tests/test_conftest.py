"""What all tests share does what it is for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

FAILING = """
import subprocess, sys
import pytest

CODE = "import sys; sys.stdout.write('out' + 'put'); sys.stderr.write('er' + 'ror'); sys.exit(7)"

def run(**options):
    subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, **options)

def test_text():
    run(text=True)

def test_bytes():
    run()

def test_time():  # as `communicate` raises it
    raise subprocess.TimeoutExpired(["command"], 2, output=b"out" b"put", stderr=b"er" b"ror")

@pytest.fixture
def prepared():
    try:
        run()
    except subprocess.CalledProcessError as error:
        raise ValueError("not prepared") from error

def test_fixture(prepared):
    pass
"""

LONG = """
import pytest

def test_usual():
    pass

@pytest.mark.timeout(100)
def test_less():
    pass

@pytest.mark.timeout(700)
def test_long():
    pass
"""


GREEDY = """
import os

def test_greedy():
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

def test_next():
    assert os.sched_getscheduler(0) != os.SCHED_BATCH
"""


def run_tests(folder: Path, *options: str) -> str:
    """pytest's words about a folder's tests, with what all tests share."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", *options)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_tests_that_are_given_more_time_begin_first(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(LONG)
    said = run_tests(tmp_path, "--collect-only", "-q", "-o", "timeout=300")
    assert [line.split("::")[1] for line in said.splitlines() if "::" in line] == [
        "test_long",
        "test_usual",
        "test_less",
    ]


def test_what_was_there_before_the_tests_is_not_looked_through_for_garbage() -> None:
    assert gc.get_freeze_count() > 10_000


def test_what_a_failed_process_said_is_shown(tmp_path: Path) -> None:
    """Whether it left with an error, was not done in time, or is only the cause of what failed."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    told = run_tests(tmp_path, "--tb=short", "-q")
    assert "3 failed, 1 error" in told, told
    for name, said in (("stdout", "output"), ("stderr", "error")):
        assert told.count(f" {name} of the process ") == 4, told
        assert told.count(f"\n{said}\n") == 4, told


def test_a_test_that_leaves_another_priority_behind_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_greedy.py").write_text(GREEDY)
    said = run_tests(tmp_path)
    assert "has left its process with another scheduling policy" in said
    assert "2 passed, 1 error" in said


def test_torch_computes_with_one_thread():
    """In the processes that a test starts, too: layers this small wait longer for each other than they compute."""
    command = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == os.environ["OMP_NUM_THREADS"]
