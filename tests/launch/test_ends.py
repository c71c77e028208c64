"""How watching ends when a script does something else than train on: each in real processes."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from fulltilt.errors import FulltiltError, InputError
from fulltilt.launch.command import Command, parse
from fulltilt.launch.job import FULL
from fulltilt.launch.observe import _ended, observe
from fulltilt.launch.run import execute
from fulltilt.measure.observation import Observation

SCRIPTS = Path(__file__).parent / "scripts"


def small(*words: str) -> Command:
    return parse([str(SCRIPTS / "small.py"), *words])


def plainly(command: Command) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command.argv(), capture_output=True, text=True, check=False)


def echoed(command: Command, capfd: pytest.CaptureFixture[str]) -> tuple[Observation, str, str]:
    seen = observe(command, echo=True)
    out, err = capfd.readouterr()
    return seen, out, err


@pytest.mark.parametrize("text", [b"def step(:\n", b"\x7fELF\x00\x01"])
def test_a_script_that_is_no_python_is_told_as_python_tells_it(
    text: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_bytes(text)
    command = parse([str(tmp_path / "odd.py")])
    seen, out, err = echoed(command, capfd)
    alone = plainly(command)
    assert "SyntaxError" in alone.stderr
    assert (out, err) == (alone.stdout, alone.stderr)
    assert (seen.ended, seen.exit_status) == ("failed", 1)


def test_a_script_that_fails_shows_its_own_traceback_and_status_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = small("fails", "20")
    seen, out, err = echoed(command, capfd)
    alone = plainly(command)
    assert "ValueError: the fifth call" in alone.stderr
    assert (out, err) == (alone.stdout, alone.stderr)
    assert seen.exit_status == alone.returncode == 1
    assert seen.ended == "failed"
    assert len(seen.steps) >= 3  # the four before it, less those that warm up


@pytest.mark.parametrize("workers", ["0", "1"])
def test_so_does_one_whose_dataset_fails(workers: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Compose:
    def __init__(self, *members):
        self.transforms = list(members)
    def __call__(self, value):
        for member in self.transforms:
            value = member(value)
        return value

class Divide:
    def __call__(self, value):
        return 1 / value

class Bad(Dataset):
    def __init__(self):
        self.transform = Compose(Divide())
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return self.transform(5 - index)

for batch in DataLoader(Bad(), batch_size=2, num_workers=int(sys.argv[1])):
    pass
"""
    )
    command = parse([str(script), workers])
    seen, out, err = echoed(command, capfd)
    alone = plainly(command)
    assert "ZeroDivisionError" in alone.stderr
    assert (out, err) == (alone.stdout, alone.stderr)
    assert (seen.ended, seen.exit_status) == ("failed", 1)


def test_the_last_lines_of_one_that_fails_are_kept_where_its_output_is_not_shown() -> None:
    seen = observe(small("fails", "20"))
    assert any("ValueError: the fifth call" in note for note in seen.notes)


def test_a_script_that_leaves_with_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    seen, _, err = echoed(small("exits", "20"), capfd)
    assert err == "said at the end\n"
    assert seen.exit_status == 1
    assert seen.ended == "failed"


def test_a_script_that_never_trains(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "hello.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:], sys.path[0])\n")
    command = parse([str(script), "--lr", "1"])
    seen, out, _ = echoed(command, capfd)
    assert out == plainly(command).stdout  # as if nobody watched
    assert (seen.ended, seen.exit_status, seen.steps) == ("script", 0, ())
    assert any("without a step" in note for note in seen.notes)


def test_a_module_is_run_as_python_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    seen, out, _ = echoed(parse(["-m", "package.train", "a"]), capfd)
    assert out == "__main__ package ['a']\n"
    assert seen.exit_status == 0


def test_a_script_of_three_steps() -> None:
    seen = observe(small("trains", "3"))
    assert (seen.ended, seen.exit_status) == ("script", 0)
    assert len(seen.steps) == 2


def test_a_loop_without_a_loader_has_losses_and_no_samples() -> None:
    seen = observe(small("trains", "30"))
    assert seen.loaders == ()
    assert all(step.samples is None and step.loss is not None for step in seen.steps)
    assert seen.training is not None
    assert (seen.training.model, seen.training.optimizer, seen.training.parameters) == ("Model", "SGD", 5)


def test_os_exit() -> None:
    seen = observe(small("leaves", "50"))
    assert seen.exit_status == 7
    assert seen.ended == "failed"
    assert len(seen.steps) >= 3


def test_a_script_that_is_killed() -> None:
    seen = observe(small("dies", "50"))
    assert (seen.ended, seen.exit_status, seen.steps) == ("killed", -signal.SIGKILL, ())
    assert any("signal SIGKILL" in note for note in seen.notes)


def test_a_script_that_forks_is_seen_once() -> None:
    seen = observe(small("forks", "30"))
    assert (seen.ended, seen.exit_status) == ("script", 0)
    assert seen.steps[-1].number == 29


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_training_in_a_child(context: str) -> None:
    seen = observe(parse([str(SCRIPTS / "children.py"), context]))
    assert (seen.ended, seen.exit_status) == ("script", 0)
    assert seen.steps[-1].number == 19


def test_enough_leaves_the_script_even_where_it_catches_everything() -> None:
    began = time.monotonic()
    seen = observe(small("swallows", "100000000"), max_steps=40)
    assert seen.ended == "steps"
    assert 20 < len(seen.steps) < 40
    assert time.monotonic() - began < 60


def test_a_script_that_reads_stdin(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "given.txt"
    given.write_text("a line\n")
    with given.open() as file:
        before = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            seen, out, _ = echoed(small("reads", "5"), capfd)
        finally:
            os.dup2(before, 0)
            os.close(before)
    assert out == "read a line\n"
    assert seen.exit_status == 0


def test_its_own_sitecustomize_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seen, out, err = echoed(small("trains", "10"), capfd)
    assert (out, err) == ("mine\n", "")
    assert len(seen.steps) == 7


def test_a_script_that_never_comes_to_training_is_ended_when_its_time_is_up(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(600)\n")
    began = time.monotonic()
    seen = observe(parse([str(script)]), deadline_seconds=1)
    assert seen.ended == "time"
    assert seen.exit_status is None
    assert time.monotonic() - began < 15


RESTS = """
import sys, time
import torch

before, after = map(float, sys.argv[1:])
time.sleep(before)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    if step == 0:
        time.sleep(after)
"""


def test_a_first_step_that_comes_in_time_is_enough_and_one_that_does_not_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "rests.py").write_text(RESTS)
    began = time.monotonic()
    assert plainly(parse([str(tmp_path / "rests.py"), "0", "0"])).returncode == 0
    enough = 2.0 + 2 * (time.monotonic() - began)  # on a busy machine, too
    seen = observe(parse([str(tmp_path / "rests.py"), "0", str(enough)]), first_step_seconds=enough, full=True)
    assert (seen.ended, seen.exit_status) == ("script", 0)
    assert seen.seconds > enough, "it trained on when that time was up"
    late = observe(parse([str(tmp_path / "rests.py"), "600", "0"]), first_step_seconds=1)
    assert (late.ended, late.steps) == ("time", ())


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="found 'fast'"):
        observe(small("trains", "3"), mode="fast")


def test_a_working_directory_that_is_no_more_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FulltiltError, match="the folder that this was started in is no more"):
        observe(small("trains", "3"))


WATCHER = """
import sys
from fulltilt.launch.command import parse
from fulltilt.launch.observe import observe
observe(parse(sys.argv[1:]), echo=True, full=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_ending_the_watcher_ends_all_children_and_leaves_nothing(
    number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    temporary = Path(tempfile.mkdtemp())  # a short path: workers make sockets in it
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    script = [str(SCRIPTS / "plain.py"), "--workers", "2", "--epochs", "1000000"]
    with subprocess.Popen(
        [sys.executable, "-c", WATCHER, *script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
        text=True,
    ) as watcher:
        try:
            assert isinstance(watcher.stdout, io.TextIOBase)
            assert watcher.stdout.readline() == "epoch 0\n"
            children = psutil.Process(watcher.pid).children(recursive=True)
            assert len(children) >= 1
            watcher.send_signal(number)
            assert watcher.wait(20) != 0
        finally:
            watcher.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive, [child.cmdline() for child in alive]
    assert not list(temporary.glob("fulltilt-*"))


def test_a_killed_watcher_takes_its_trial_along(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WATCHER, str(SCRIPTS / "small.py"), "trains", "1000000000"]
    with subprocess.Popen(words, env={**os.environ, "TMPDIR": str(tmp_path)}) as watcher:
        while not list(tmp_path.glob("fulltilt-*/out/begun")):
            assert watcher.poll() is None
            time.sleep(0.02)
        children = psutil.Process(watcher.pid).children(recursive=True)
        watcher.kill()
    _, alive = psutil.wait_procs(children, timeout=2)
    for child in alive:
        child.kill()
    assert children
    assert not alive


def test_what_a_script_starts_from_a_thread_outlives_that_thread_also_under_the_users_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, sys, threading, time\n"
        "helper = []\n"
        "def start():\n"
        "    words = [sys.executable, '-c', 'print(flush=True); input()']\n"
        "    helper.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))\n"
        "    helper[0].stdout.readline()\n"
        "thread = threading.Thread(target=start)\n"
        "thread.start()\n"
        "thread.join()\n"
        "time.sleep(0.3)  # a thread ends a moment after it can be joined\n"
        "helper[0].communicate(b'\\n')\n"
        "sys.exit(helper[0].returncode)\n"
    )
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "theirs")
    assert observe(parse([str(script)])).exit_status == 0


@pytest.mark.parametrize(
    ("status", "own", "raised", "ended"),
    [(3, 3, False, "script"), (3, None, False, "failed"), (4, 3, False, "failed"), (3, 3, True, "failed")],
)
def test_in_a_trial_the_scripts_own_status_is_no_failure(
    status: int, own: int | None, raised: bool, ended: str
) -> None:
    seen = Observation(command=("train.py",), ended="script", seconds=1.0, applied={"tf32": True})
    found = _ended(seen, status=status, own=own, late=False, raised=raised, tail=())
    assert (found.ended, found.exit_status, found.raised) == (ended, status, raised)


@pytest.mark.parametrize("how", ["exits", "fails"])
def test_an_exception_that_ends_it_is_told_from_an_exit(how: str) -> None:
    seen = observe(small(how, "20"))
    assert seen.exit_status == 1
    assert seen.raised == (how == "fails")


def test_a_script_that_fails_beside_a_full_temporary_folder_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes goes there, and its own error may name anything: torch's is an unexpected position."""
    (tmp_path / "fails.py").write_text("open('w.pt', 'w').write('x')\nraise RuntimeError('unexpected pos')\n")
    (tmp_path / "ends.py").write_text("")
    assert not any(FULL in note for note in observe(parse([str(tmp_path / "fails.py")])).notes)
    monkeypatch.setattr("fulltilt.launch.observe.FULL_BYTES", 1 << 60)
    monkeypatch.setattr("fulltilt.launch.observe.FULL_SHARE", 1.1)
    (told,) = (note for note in observe(parse([str(tmp_path / "fails.py")])).notes if FULL in note)
    assert told.endswith(f"are left in {tempfile.gettempdir()}; set TMPDIR to a folder with more space")
    assert not any(FULL in note for note in observe(parse([str(tmp_path / "ends.py")])).notes)


TIDIED = """
import os, shutil, time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.zeros(4)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(DataLoader(Samples(), batch_size=2)):
        model(batch).sum().backward()
        optimizer.step()
        if step == 2:
            shutil.rmtree(os.path.dirname(os.environ["FULLTILT_JOB"]))
    print("trained")
"""


def test_a_run_goes_on_where_its_temporary_folder_is_tidied_away(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As systemd does after ten days, and as a disk that others have filled would have it."""
    (tmp_path / "train.py").write_text(TIDIED)
    status, seen = execute(parse([str(tmp_path / "train.py")]), {"loader.num_workers": 1})
    assert (status, seen, *capfd.readouterr()) == (0, None, "trained\n", "")


SHORT = """
import time
import torch
taken = bytearray(b"x") * (300 << 20)  # as libraries do that are imported
time.sleep(2.5)
taken += bytearray(b"x") * (300 << 20)
time.sleep(1.5)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.zeros(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""


def test_what_is_taken_before_the_first_step_is_not_the_trainings(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT)
    seen = observe(parse([str(tmp_path / "short.py")]))
    assert seen.surroundings is not None
    assert seen.surroundings.memory_bytes[0] > 600 << 20  # what it lets go of at its end is no growth
