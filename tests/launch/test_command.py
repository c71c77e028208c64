from __future__ import annotations

import re
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
        (["--lr", "x.py"], "there is no option --lr; the script's own come after it: train.py --lr"),
        (["--lr=3", "x.py"], "there is no option --lr; "),
        (["--maxsteps", "5", "x.py"], "there is no option --maxsteps; did you mean --max-steps?"),
        (["--max_steps=5", "x.py"], "there is no option --max_steps; did you mean --max-steps?"),
        (["nowhere.py"], "no script nowhere.py"),
        (["nowhere.ipynb"], "no script nowhere.ipynb"),
        (["a b.ipynb"], "a b.ipynb is a notebook; convert it first: jupyter nbconvert --to script 'a b.ipynb'"),
        (["python", "x.py", "--lr"], "python is not the script: leave out `python`: fulltilt diagnose x.py"),
        (["python3.12", "-m", "x", "--lr"], "leave out `python3.12`: fulltilt diagnose -m x"),
        (["bin/python3", "-u", "x.py"], "python3 is not the script: leave out `python3`: fulltilt diagnose train.py"),
        (["torchrun", "x.py"], "fulltilt diagnose --nproc-per-node 2 train.py, or torchrun … -m fulltilt diagnose"),
        (["."], "__main__"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.ipynb").write_text("{}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_bytes(b"\x7fELF")
    with pytest.raises(InputError, match=re.escape(said)):
        parse(words, name="diagnose", options=("--full", "--max-steps", "--max-seconds"))


def test_a_script_or_a_folder_may_be_called_like_what_starts_it(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    for file in (tmp_path / "python" / "__main__.py", tmp_path / "python.py", tmp_path / "torchrun_all.py"):
        file.write_text("")
    for target in ("python", "python.py", "torchrun_all.py"):
        assert parse([str(tmp_path / target)]).target == str(tmp_path / target)


def test_a_number_of_processes_that_cannot_be(script: str) -> None:
    with pytest.raises(InputError, match="found 0"):
        parse([script], processes=0)
