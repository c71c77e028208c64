"""The script itself, to its end, with a plan: in a process of its own, with our terminal, and its own exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from fulltilt.launch import job as jobs
from fulltilt.launch.command import Command
from fulltilt.launch.observe import environment, torchruns_logs
from fulltilt.launch.scratch import PREFIX, room_or_told
from fulltilt.measure.observation import Observation, read

_SIGNAL = 128
_PATIENCE = 3
"""The n-th Ctrl-C no longer asks."""
_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""What keys of a terminal send, to all processes in front."""
_USERS = (signal.SIGUSR1, signal.SIGUSR2)
"""What they mean is the script's to say. torchrun knows nothing of them: it would end, and leave its ranks behind."""
_PASSED_ON = (*_KEYS, *_USERS, signal.SIGTERM, signal.SIGHUP)
"""A scheduler tells a job with them that its time is nearly up. Stopping and going on is not among them: a shell tells
that to all processes of a job."""


def execute(command: Command, settings: Mapping[str, Any]) -> tuple[int, Observation | None]:
    """Run it in full: its exit status (128 and the signal's number, where one ended it), and what was seen of rank 0.

    Without settings nothing of ours is in it, and nothing is seen. With them, FulltiltError where there is no room for
    temporary files: then nothing was run.
    """
    with _Signals(by_torchrun=command.processes is not None) as signals, ExitStack() as held:
        its_own, out = _with_job(command, settings, held) if settings else (_plain(command, held), None)
        process = subprocess.Popen(command.argv(), env=its_own)
        try:
            signals.begin(process.pid)
            with suppress(ChildProcessError):  # where our parent ignores SIGCHLD, nothing is left to wait for
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            signals.end()
            status = _end_tree(process)
        return (status if status >= 0 else _SIGNAL - status), None if out is None else _seen(out)


def _with_job(command: Command, settings: Mapping[str, Any], held: ExitStack) -> tuple[dict[str, str], Path]:
    """The environment by which its processes find the settings, and where they write what they have seen."""
    with room_or_told():
        scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
        out, file = scratch / "out", scratch / "job.json"
        out.mkdir()
        jobs.Job(out=str(out), settings=dict(settings), full=True, lets_go=True, command=command.words).write(file)
    return _environment(file), out


def _plain(command: Command, held: ExitStack) -> dict[str, str] | None:
    """The script's environment as it is, but that a torchrun of ours leaves nothing behind, where it has room."""
    if command.processes is not None:
        with suppress(OSError):
            scratch = held.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            return {**os.environ, **torchruns_logs(Path(scratch))}
    return None


def _environment(file: Path) -> dict[str, str]:
    made = environment(file)
    if "PYTHONDONTWRITEBYTECODE" not in os.environ:  # that is for trials, which leave no trace
        made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


class _Signals:
    """What we are told while the script runs is meant for it: it may want to save, and ends when it likes.

    We listen before it exists, or a signal in between would end us and leave it alone; it is passed on when it does.
    """

    def __init__(self, *, by_torchrun: bool) -> None:
        self._by_torchrun = by_torchrun
        self._script: int | None = None
        """Its process, from when it exists until it is reaped: then the number may be another's."""
        self._early: list[int] = []
        self._asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # The script is to inherit what is ignored (nohup), and would not inherit a handler.
        self._listen(number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # one that is not Python's can't be put back
                signal.signal(number, handler)

    def begin(self, script: int) -> None:
        self._script = script
        self._listen(number for number in _PASSED_ON if number not in self._before)
        while self._early:
            self._send(self._early.pop(0))

    def end(self) -> None:
        self._script = None

    def _listen(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._before[number] = signal.signal(number, self._told)

    def _told(self, number: int, _: FrameType | None) -> None:
        self._asked += number == signal.SIGINT
        if self._script is None:
            self._early.append(number)  # whoever sent it, the script was not there to be told
        elif number in _KEYS and self._asked < _PATIENCE and _at_terminal():
            pass  # the terminal has told the script itself
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._script is None:
            return
        if number == signal.SIGINT and self._asked >= _PATIENCE:
            _kill_tree(self._script)
            return
        if number in _USERS and self._by_torchrun:
            _tell_children(self._script, number)
            return
        with suppress(ProcessLookupError):
            os.kill(self._script, number)


def _at_terminal() -> bool:
    """Whether Ctrl-C comes from a terminal, which sends it to all processes in front."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)  # standard input may be a file
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_tree(process: subprocess.Popen[bytes]) -> int:
    """Its exit status."""
    if process.poll() is None:  # the number of one that was reaped may be another's
        _kill_tree(process.pid)
    return process.wait()


def _kill_tree(script: int) -> None:
    with suppress(psutil.Error):
        tree = psutil.Process(script)
        for one in [*tree.children(recursive=True), tree]:
            with suppress(psutil.Error):
                one.kill()


def _tell_children(torchrun: int, number: int) -> None:
    with suppress(psutil.Error):
        for rank in psutil.Process(torchrun).children():
            with suppress(psutil.Error):
                rank.send_signal(number)


def _seen(out: Path) -> Observation | None:
    """Of the process that trained most."""
    found = [read(path) for path in out.glob(jobs.REPORT.format(rank=0, pid="*"))]
    return max(found, key=lambda one: len(one.steps), default=None)
