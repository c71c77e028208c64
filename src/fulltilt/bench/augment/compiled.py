"""Peers under torch.compile, each in a process of its own: compiling can take minutes or never end, and a process can
be stopped. It compiles while we do; then it waits, so that nothing else runs while either is timed.

parent                         child
  start ──── arguments ──────►   build, compile, warm up
  wait until ready, or kill ◄─   "ready SECONDS"
  "go" ──────────────────────►   time
  read ◄──────────────────────   figures as JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass

from fulltilt.bench.augment.figures import Peer, Timing
from fulltilt.bench.augment.peers import calling, composed_apply, float_inputs, kornia_apply
from fulltilt.bench.augment.task import Task
from fulltilt.bench.augment.timing import time_on_cpu, time_on_gpu
from fulltilt.bench.ground import said
from fulltilt.errors import last_line
from fulltilt.machine.software import is_installed

_BUILDERS = {"torch": composed_apply, "kornia": kornia_apply}
_TIMING_SECONDS = 10.0
_WARM_CALLS = 6
"""Draws change what is compiled (how many samples flip), so one call does not warm everything up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A peer to compile."""

    key: str
    name: str
    takes: str
    needs: str | None = None


WANTED = (
    Wanted(key="kornia", name="Kornia, compiled", takes="float32 in and out", needs="kornia"),
    Wanted(key="torch", name="torch, one grid_sample, compiled", takes="float32 in, bf16 out"),
)


class Compiling:
    """A peer that is being compiled, beside whatever else is done."""

    def __init__(self, wanted: Wanted, task: Task) -> None:
        self.wanted, self._task = wanted, task
        self._began = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        self._problem: str | None = None
        if wanted.needs is not None and not is_installed(wanted.needs):
            self._problem = f"not installed: pip install {wanted.needs}"
        else:
            self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
            command = [sys.executable, "-m", __spec__.name, wanted.key, json.dumps(asdict(task))]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                start_new_session=True,  # torch.compile starts processes of its own: they end together
            )

    def wait(self, *, limit_seconds: float) -> None:
        """Until it is compiled, or has taken longer than that since it was started; then it is stopped."""
        if self._process is None:
            return
        said = self._line(self._began + limit_seconds)
        if said is None:
            self._end(f"skipped: compiling took > {limit_seconds:g} s")
        elif not said.startswith("ready"):
            self._end(self._error(said))

    def measure(self) -> Peer:
        """Its times, or why there are none."""
        timing = None
        if self._process is not None:
            self._say("go")
            said = self._line(time.monotonic() + _TIMING_SECONDS)
            if said is None:
                self._end(f"skipped: timing took > {_TIMING_SECONDS:g} s")
            elif not said.startswith("{"):
                self._end(self._error(said))
            else:
                timing = Timing(**json.loads(said))
                self.close()
        return Peer(
            name=self.wanted.name,
            takes=self.wanted.takes,
            masks=self._task.masks,
            timing=timing,
            problem=self._problem,
        )

    def _end(self, problem: str) -> None:
        self._problem = problem
        self.close()

    def close(self) -> None:
        """End it and what it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it may be gone already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._errors.close()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _line(self, until: float) -> str | None:
        """What it says next; empty when it ended, None when it said nothing in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
        return self._process.stdout.readline().strip() if ready else None

    def _say(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: reading says so
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def _error(self, line: str) -> str:
        if line:
            return line[:160]
        self._errors.seek(0)
        return last_line(self._errors.read(), "ended without a word")[:160]


def main(key: str, task: Task) -> None:
    """The child."""
    import torch

    say, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not for the parent
    try:
        began = time.perf_counter()
        inputs = float_inputs(task)
        call = calling(torch.compile(_BUILDERS[key](task.device)), inputs, masks=task.masks)
        for k in range(_WARM_CALLS):
            call(k)
        print(f"ready {time.perf_counter() - began:.1f}", file=say, flush=True)
        if sys.stdin.readline().strip() != "go":
            return
        timing = time_on_cpu(call) if task.device == "cpu" else time_on_gpu(call)
        print(json.dumps(asdict(timing)), file=say, flush=True)
    except Exception as error:
        print(said(error), file=say, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Task(**json.loads(sys.argv[2])))
