"""Scripts that save below the temporary folder, and scripts whose temporary files others have to find."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(params=[None, "/dev/shm"], ids=["temporary", "shared memory"])
def finished(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The results of a run that is over, in the folder itself that everybody uses."""
    outer = Path(tempfile.mkdtemp(dir=request.param))
    folder = outer / "run1"
    folder.mkdir()
    torch.save({"step": 1000}, folder / "best.pt")
    (folder / "log.txt").write_text("1000\n")
    (folder / "old.pt").touch()
    yield folder
    shutil.rmtree(outer)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_a_finished_run_below_the_temporary_folder_stays_byte_identical(finished: Path) -> None:
    before = contents(finished.parent)
    for _ in range(2):  # the second one does not see what the first one wrote: the script asserts so
        seen = observe(parse([str(SCRIPTS / "saves.py"), str(finished)]), full=True)
        assert seen.exit_status == 0, seen.notes
        assert not seen.notes
        assert contents(finished.parent) == before


def test_a_script_in_the_temporary_folder_itself(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short / "train.py").write_text(
        "import subprocess, sys, tempfile\n"
        "from pathlib import Path\n"
        "Path('last.pt').write_text('new')\n"
        "Path('made.txt').touch()\n"
        "with tempfile.NamedTemporaryFile() as file:\n"
        "    subprocess.run(['test', '-e', file.name], check=True)\n"
        "subprocess.run(['touch', 'by-another-program'], check=True)\n"
    )
    (short / "last.pt").write_text("finished")
    monkeypatch.chdir(short)
    seen = observe(parse(["train.py"]))
    assert seen.exit_status == 0, seen.notes
    assert seen.notes == ("the script ended without a step of an optimizer",)
    assert (short / "last.pt").read_text() == "finished"
    assert sorted(os.listdir(short)) == ["by-another-program", "last.pt", "train.py"]


@pytest.mark.usefixtures("short", "elsewhere")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_temporary_files_are_there_for_all_processes_and_programs(start: str) -> None:
    seen = observe(parse([str(SCRIPTS / "temporary.py"), start]), full=True)
    assert seen.exit_status == 0, seen.notes
    assert seen.notes == ("the script ended without a step of an optimizer",)


@pytest.mark.usefixtures("short", "elsewhere")
@pytest.mark.timeout(300)
def test_inductor_compiles_in_an_empty_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    seen = observe(parse([str(SCRIPTS / "inductor.py")]), full=True)
    assert seen.exit_status == 0, seen.notes
    assert len(seen.steps) > 0
    assert not seen.notes
