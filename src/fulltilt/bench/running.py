"""Processes that a benchmark starts and measures: whole commands, known loads, and a command's CPU time."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from fulltilt.errors import UnavailableError, last_line

_LEAVING_SECONDS = 15.0


def output_of(command: Sequence[str], *, with_errors: bool = False) -> tuple[int, str]:
    """A command's exit status and what it printed; `with_errors`: there, too, else they pass through."""
    errors = subprocess.STDOUT if with_errors else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            output, _ = process.communicate()
        except BaseException:  # Ctrl-C is the command's, too: it has children of its own to end
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVING_SECONDS)
            process.terminate()
            raise
    return process.returncode, output


@contextmanager
def running_load(load: str, *, device: str = "cuda") -> Iterator[int]:
    """One of `fulltilt.bench.loads` at work; gives its process id once the load runs, and ends it afterwards."""
    command = [sys.executable, "-m", "fulltilt.bench.loads", load, "--device", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline().strip() if process.stdout is not None else ""
            if said != "ready":
                _, errors = process.communicate()
                why = last_line(errors, "no message")
                raise UnavailableError(f"the load {load!r} did not start on {device}: {why}")
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def on_a_terminal(command: Sequence[str], *, columns: int, rows: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command with a terminal of its own, whose output is read and thrown away."""
    import fcntl
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    try:
        with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
            os.close(its)
            reader = threading.Thread(target=_drain, args=(ours,), daemon=True)
            reader.start()
            try:
                yield process
            finally:
                process.terminate()
                process.wait()
                reader.join()
    finally:
        os.close(ours)


def _drain(terminal: int) -> None:
    while True:
        try:
            if not os.read(terminal, 65536):
                return
        except OSError:  # what Linux answers when the other side is gone
            return


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used; in nanoseconds where the kernel tells, else in ticks of 10 ms."""
    spent = [_nanoseconds(task / "schedstat") for task in Path(f"/proc/{pid}/task").glob("*")]
    exact = [nanoseconds for nanoseconds in spent if nanoseconds is not None]
    times = psutil.Process(pid).cpu_times()
    if len(exact) < len(spent) or not sum(exact):
        return float(times.user + times.system)
    return sum(exact) / 1e9


def _nanoseconds(file: Path) -> int | None:
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
