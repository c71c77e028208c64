"""The script itself, to its end, with a plan: in a process of its own, with our terminal, and its own exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from fulltilt.launch import job as jobs
from fulltilt.launch.command import Command
from fulltilt.launch.observe import environment, torchruns_logs
from fulltilt.measure.observation import Observation, read

_SIGNAL = 128
_PATIENCE = 3
"""The n-th Ctrl-C no longer asks."""


def execute(command: Command, settings: Mapping[str, Any]) -> tuple[int, Observation | None]:
    """Run it in full: its exit status (128 and the signal's number, where one ended it), and what was seen of rank 0.

    Without settings nothing of ours is in it, and nothing is seen.
    """
    with tempfile.TemporaryDirectory(prefix="fulltilt-") as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        file = Path(scratch) / "job.json"
        jobs.Job(out=str(out), settings=dict(settings), full=True, lets_go=True, command=command.words).write(file)
        process = subprocess.Popen(
            command.argv(), env=_environment(file) if settings else _plain(command, Path(scratch))
        )
        try:
            with _signals_for(process):
                status = process.wait()
        finally:
            _end_tree(process)
        return (status if status >= 0 else _SIGNAL - status), _seen(out)


def _plain(command: Command, scratch: Path) -> dict[str, str] | None:
    """The script's environment as it is, but that a torchrun of ours leaves nothing behind."""
    return None if command.processes is None else {**os.environ, **torchruns_logs(scratch)}


def _environment(file: Path) -> dict[str, str]:
    made = environment(file)
    if "PYTHONDONTWRITEBYTECODE" not in os.environ:  # that is for trials, which leave no trace
        made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


@contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What we are told while the script runs is meant for it: it may want to save, and ends when it likes."""
    asked = 0

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        if asked >= _PATIENCE:
            _kill_tree(process)  # and no waiting: the loop below this handler does that, with Popen's lock in its hand
        elif number != signal.SIGINT or not _at_terminal():  # a terminal has told the script itself
            with suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    _kill_tree(process)
    process.wait()


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.Error):
        tree = psutil.Process(process.pid)
        for one in [*tree.children(recursive=True), tree]:
            with suppress(psutil.Error):
                one.kill()


def _seen(out: Path) -> Observation | None:
    """Of the process that trained most."""
    found = [read(path) for path in out.glob(jobs.REPORT.format(rank=0, pid="*"))]
    return max(found, key=lambda one: len(one.steps), default=None)
