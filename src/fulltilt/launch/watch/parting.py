"""A trial ends with its watcher, also where that is killed: nobody is left to read what it sees, or to end it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from fulltilt.launch import job as jobs

_PR_SET_PDEATHSIG: Final = 1


def end_with_watcher(job: jobs.Job) -> None:
    """Of this process, where it is the command, or a rank of a torchrun that is. What the command starts itself watches
    its own parent, as workers do. The kernel sees to it: a thread would be one more in a script that forks."""
    watcher, parent = os.environ.get(jobs.LAUNCHER, ""), os.getppid()
    if str(parent) == watcher or (job.starts_ranks and _parent_of(parent) == watcher):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that
            os.kill(os.getpid(), signal.SIGKILL)


def _parent_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""
