"""Who ends with a trial's watcher, and who does not (tests/launch/test_ends.py kills real ones)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fulltilt.launch.job import LAUNCHER

PARTS = """
import ctypes, sys
from fulltilt.launch.job import Job
from fulltilt.launch.watch.parting import end_with_watcher
end_with_watcher(Job(out=""))
told = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(told))  # PR_GET_PDEATHSIG
print(told.value)
"""


@pytest.mark.parametrize(
    ("watcher", "ends_with_it"),
    [("us", 9), ("nobody", 0), ("", 0)],
    ids=["the trial's command", "started elsewhere, where our pid is nobody's", "no trial"],
)
def test_whose_parent_is_no_watcher_lives_on(watcher: str, ends_with_it: int) -> None:
    gone = next(pid for pid in range(2**22 - 1, 0, -1) if not Path(f"/proc/{pid}").exists())
    pid = {"us": str(os.getpid()), "nobody": str(gone)}.get(watcher, "")
    done = subprocess.run(
        [sys.executable, "-c", PARTS], env={**os.environ, LAUNCHER: pid}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{ends_with_it}\n"), done.stderr
