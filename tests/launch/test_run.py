"""The full run and what it is told while it lasts: real processes, real signals."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from fulltilt.launch.command import parse
from fulltilt.launch.run import execute

US = """
import sys
from fulltilt.launch.command import parse
from fulltilt.launch.run import execute
sys.exit(execute(parse(sys.argv[1:]), {})[0])
"""

LISTENS = r"""
import os, signal, sys, time
def told(number, frame):
    os.write(1, f"told {signal.Signals(number).name}\n".encode())  # at once: ranks' lines must not mingle
for name in sys.argv[2:]:
    signal.signal(signal.Signals[name], told)
ignored = [name for name in ("SIGHUP", "SIGINT") if signal.getsignal(signal.Signals[name]) == signal.SIG_IGN]
os.write(1, f"listens {os.getpid()} {' '.join(ignored)}\n".encode())
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until and not os.path.exists("enough"):
    time.sleep(0.05)
sys.exit(5)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    Path("listens.py").write_text(LISTENS)
    return "listens.py"


@contextmanager
def running(*words: str, code: str = US, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of ours that runs the script; neither is left when the test ends."""
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, **more)
    try:
        with process:
            yield process
    finally:
        process.kill()


@contextmanager
def ended_after(pid: int) -> Iterator[None]:
    """The script of that number must be gone when the block is left."""
    try:
        yield
        assert not psutil.pid_exists(pid), "it was left behind"
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_is_the_scripts_and_so_is_the_status(script: str, name: str) -> None:
    with running(script, "60", name, start_new_session=True) as process:
        _, pid, *_ = said(process)
        with ended_after(int(pid)):
            process.send_signal(signal.Signals[name])
            assert said(process) == ["told", name]
            Path("enough").touch()
            assert process.wait(20) == 5
    assert not list(Path().glob("fulltilt-*"))


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGQUIT", "SIGTERM"])
def test_one_that_it_does_not_handle_ends_it(script: str, name: str) -> None:
    with running(script, "60", start_new_session=True) as process:
        _, pid, *_ = said(process)
        with ended_after(int(pid)):
            process.send_signal(signal.Signals[name])
            assert process.wait(20) == 128 + signal.Signals[name]
    assert not list(Path().glob("fulltilt-*"))


def test_the_ranks_of_a_torchrun_are_told_what_it_does_not_know(script: str) -> None:
    with running(
        script, "60", "SIGUSR1", code=US.replace("parse(sys.argv[1:])", "parse(sys.argv[1:], processes=2)")
    ) as process:
        pids = [int(said(process)[1]) for _ in range(2)]
        with ended_after(pids[0]), ended_after(pids[1]):
            process.send_signal(signal.SIGUSR1)
            assert [said(process) for _ in range(2)] == [["told", "SIGUSR1"]] * 2
            process.send_signal(signal.SIGTERM)  # torchrun ends its ranks
            assert process.wait(60) != 0
    assert not list(Path().glob("fulltilt-*"))


EARLY = """
import os, signal, subprocess, sys
from fulltilt.launch.command import parse
from fulltilt.launch.run import execute

number, when, start = signal.Signals[sys.argv[1]], sys.argv[2], subprocess.Popen
def start_and_tell(*words, **more):
    if when == "before":
        os.kill(os.getpid(), number)
    process = start(*words, **more)
    print("script", process.pid, flush=True)
    if when == "after":
        os.kill(os.getpid(), number)
    return process

subprocess.Popen = start_and_tell
sys.exit(execute(parse(sys.argv[3:]), {})[0])
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_one_that_comes_while_the_script_is_started_reaches_it(script: str, name: str, when: str) -> None:
    with running(name, when, script, "60", code=EARLY) as process:
        word, pid = said(process)
        assert word == "script"
        with ended_after(int(pid)):
            assert process.wait(20) == 128 + signal.Signals[name]
    assert not list(Path().glob("fulltilt-*"))


def test_what_is_ignored_stays_so_in_the_script_and_is_passed_on_all_the_same(script: str) -> None:
    def as_nohup_does() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # whatever the tests are run by

    with running(script, "60", preexec_fn=as_nohup_does) as process:
        _, pid, *ignored = said(process)
        assert ignored == ["SIGHUP"]
        with ended_after(int(pid)):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert psutil.pid_exists(int(pid))
            assert process.poll() is None
            Path("enough").touch()
            assert process.wait(20) == 5
    Path("enough").unlink()
    with running(script, "60", "SIGHUP", preexec_fn=as_nohup_does) as process:
        said(process)
        process.send_signal(signal.SIGHUP)
        assert said(process) == ["told", "SIGHUP"]
        Path("enough").touch()
        assert process.wait(20) == 5


def test_only_ctrl_c_runs_out_of_patience(script: str) -> None:
    names = ["SIGHUP", "SIGTERM", "SIGUSR1", "SIGINT"]
    with running(script, "60", *names, start_new_session=True) as process:
        _, pid, *_ = said(process)
        with ended_after(int(pid)):
            for name in [*names, "SIGTERM", "SIGTERM", "SIGINT", "SIGTERM", "SIGUSR1"]:
                process.send_signal(signal.Signals[name])
                assert said(process) == ["told", name]
            assert psutil.pid_exists(int(pid))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 128 + signal.SIGKILL


def test_nobody_is_ended_under_the_number_of_a_script_that_has_ended(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(psutil, "Process", asked.append)
    assert execute(parse([script, "0"]), {}) == (5, None)
    assert not asked


def test_handlers_are_put_back(script: str) -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    assert execute(parse([script, "0"]), {})[0] == 5
    assert [signal.getsignal(number) for number in numbers] == before


@contextmanager
def terminal() -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """Our end of one, and what a process calls to be in front at the other."""
    ours, theirs = pty.openpty()

    def sit() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests are run by

    with os.fdopen(ours, "wb", buffering=0) as keys:
        try:
            yield keys, sit
        finally:
            os.close(theirs)


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_at_a_terminal_tells_the_script_once(script: str, key: bytes, name: str) -> None:
    with terminal() as (keys, sit), running(script, "60", name, preexec_fn=sit) as process:
        _, pid, *_ = said(process)
        with ended_after(int(pid)):
            keys.write(key)
            assert said(process) == ["told", name]
            time.sleep(0.5)
            Path("enough").touch()
            assert process.wait(20) == 5
            assert said(process) == [], "it was told again"
