"""What all tests share does what it is for."""

from __future__ import annotations

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


def test_what_a_failed_process_said_is_shown(tmp_path: Path) -> None:
    """Whether it left with an error, was not done in time, or is only the cause of what failed."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert "3 failed, 1 error" in done.stdout, done.stdout + done.stderr
    for name, said in (("stdout", "output"), ("stderr", "error")):
        assert done.stdout.count(f" {name} of the process ") == 4, done.stdout
        assert done.stdout.count(f"\n{said}\n") == 4, done.stdout
