"""Folders of trials: gone with them, and with the next trial where their watcher was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fulltilt.errors import FulltiltError
from fulltilt.launch.scratch import scratch

HOLDER = """
import sys
from fulltilt.launch.scratch import scratch
with scratch() as folder:
    (folder / "kept").write_text("what a script has written")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_one_has_left_goes_with_the_next(temporary: Path) -> None:
    killed, left = hold(temporary)
    living, used = hold(temporary)
    (temporary / "fulltilt-mine").mkdir()
    (temporary / "fulltilt-mine" / "lock").touch()  # of somebody who has not come to locking it
    killed.kill()
    killed.communicate()
    assert left.exists()
    with scratch() as folder:
        assert {path.name for path in temporary.iterdir()} == {folder.name, used.name, "fulltilt-mine"}
    living.communicate()
    assert [path.name for path in temporary.iterdir()] == ["fulltilt-mine"]


def test_what_another_machine_may_still_use_stays(temporary: Path) -> None:
    left = temporary / "fulltilt-theirs"
    left.mkdir()
    (left / "lock").write_text("node17.cluster")
    with scratch():
        assert left.exists()


def test_no_place_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(FulltiltError, match=r"No such file or directory\); set TMPDIR"), scratch():
        pass
