"""Standard output and error that are closed, full or read no further, and Ctrl-C at the start: one line at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FULLTILT = [sys.executable, "-m", "fulltilt"]
WATCH = ["monitor", "--interval", "0.1", "--duration", "0.1"]


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = " ".join([*FULLTILT, *WATCH])
    return subprocess.run(["sh", "-c", line.format(command)], capture_output=True, text=True, check=False)


def test_closed_output_is_no_error_and_its_number_is_nobody_elses(tmp_path: Path) -> None:
    done = shell(f"{{}} --record {tmp_path}/r.jsonl --html {tmp_path}/r.html >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "r.jsonl").read_text().startswith("{")
    assert (tmp_path / "r.html").exists()


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    done = shell("{} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith("fulltilt: standard output can't be written (No space left on device): it lacks some\n")
    assert "Traceback" not in done.stderr


def test_another_files_error_is_not_taken_for_that_of_the_output() -> None:
    """Data on a disk that fails, say: what is raised in reading it names no file."""
    code = """
import errno, fulltilt.cli
def app(**_):
    raise OSError(errno.EIO, "Input/output error")
fulltilt.cli.app = app
fulltilt.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("OSError: [Errno 5] Input/output error\n")


def test_who_reads_no_further_hears_nothing_of_it() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*FULLTILT, *WATCH], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "no GPU" not in line] == []


def test_what_is_said_beside_it_may_be_lost() -> None:
    done = shell("{} 2> /dev/full")
    assert done.returncode == 0
    assert "CPU" in done.stdout


EARLY = """
import os, signal, sys
def hear(event, of):
    if event == "import" and of[0] == "fulltilt.cli.monitor":
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hear)
"""


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(EARLY)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*FULLTILT, *WATCH], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
