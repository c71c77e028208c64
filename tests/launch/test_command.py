from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fulltilt.errors import InputError
from fulltilt.launch.command import parse


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text("")
    return str(file)


def test_all_that_follows_the_script_is_its_own(script: str) -> None:
    command = parse([script, "--lr", "0.1", "-m", "x"])
    assert command.argv("python") == ["python", script, "--lr", "0.1", "-m", "x"]
    assert command.words == (script, "--lr", "0.1", "-m", "x")
    assert command.folder == Path(script).parent


def test_a_module() -> None:
    command = parse(["-m", "package.train", "--lr", "0.1"])
    assert command.argv("python") == ["python", "-m", "package.train", "--lr", "0.1"]
    assert command.folder is None


def test_a_folder_and_an_archive_are_run_as_python_runs_them(tmp_path: Path) -> None:
    folder, archive = tmp_path / "job", tmp_path / "job.zip"
    folder.mkdir()
    (folder / "__main__.py").write_text("")
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("__main__.py", "")
    command = parse([f"{folder}/", "--lr", "1"])
    assert command.argv("python") == ["python", f"{folder}/", "--lr", "1"]
    assert (command.file, command.folder) == (folder / "__main__.py", folder)
    command = parse([str(archive)])
    assert (command.file, command.folder) == (archive, tmp_path)


def test_ranks(script: str) -> None:
    words = parse([script, "a"], processes=2).argv("python")
    assert words[:3] == ["python", "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in words
    assert words[-2:] == [script, "a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no script"),
        (["-m"], "no module"),
        (["--lr", "x.py"], "options come before"),
        (["nowhere.py"], "no script nowhere.py"),
        (["."], "__main__"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        parse(words)


def test_a_number_of_processes_that_cannot_be(script: str) -> None:
    with pytest.raises(InputError, match="found 0"):
        parse([script], processes=0)
