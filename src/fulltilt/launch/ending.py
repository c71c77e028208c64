"""Ends a command with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

TERM_SECONDS = 3.0
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What a scheduler sends, or a terminal that is closed."""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate, then kill, the command's session: also what it left behind when it ended by itself."""
    members = _members(process.pid)
    if not members and process.poll() is not None:
        return
    _signal(members, signal.SIGTERM)
    end = time.monotonic() + TERM_SECONDS
    while time.monotonic() < end and any(_lives(member) for member in members):
        process.poll()  # a zombie would count as alive
        time.sleep(0.02)
    _signal([*members, *_members(process.pid)], signal.SIGKILL)
    process.wait()


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Signals that would end us at once do so as Ctrl-C does: through the `finally`s that end the command.

    One that is ignored, as under nohup, or that somebody else listens to, stays theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _members(session: int) -> list[psutil.Process]:
    """All processes of the session that the command leads, and the descendants that have left it."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
    with suppress(psutil.Error):
        for process in psutil.Process(session).children(recursive=True):
            found[process.pid] = process
    return list(found.values())


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
