"""The processes of a build, seen from the builder: hand out samples, hear what became of them, replace the dead."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from fulltilt.cache.predict import Sample
from fulltilt.cache.settings import CacheSettings
from fulltilt.errors import CacheError, cause
from fulltilt.machine.interrupts import not_for_children

_AHEAD: Final = 4
"""Samples that a worker has waiting: it never waits for us, and little is out when one dies."""
_DEATHS_PER_SAMPLE: Final = 2
_DEATHS_IN_A_ROW: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a sample."""

    number: int
    state: Literal["made", "known", "failed"]
    bytes: int = 0
    error: str = ""


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    heard: bytes = b""
    sent: deque[int] = field(default_factory=deque)
    """Not answered yet; the first is under way."""
    unkept: list[Outcome] = field(default_factory=list)
    """Answered, but lost if it dies now."""
    open: bool = True
    """Whether it still gets samples."""


class Crew:
    """Runs a list of samples through worker processes."""

    def __init__(
        self,
        folder: Path,
        settings: CacheSettings,
        samples: Sequence[Sample],
        *,
        shard_bytes: int,
        done: Callable[[Outcome], None],
        undone: Callable[[Outcome], None],
    ) -> None:
        """`done` hears of each sample; `undone` of one that has to be made again because its worker died."""
        options = {"folder": str(folder), "settings": settings.to_json(), "shard_bytes": shard_bytes}
        # -P: a queue.py or json.py where the trainer was started is not for this process to import.
        self._command = [sys.executable, "-P", "-m", "fulltilt.cache.worker", json.dumps(options)]
        self._samples = samples
        self._queue = deque(range(len(samples)))
        self._done, self._undone = done, undone
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, _Process] = {}
        self._deaths: Counter[int] = Counter()
        self._deaths_in_a_row = 0
        self._problem: str | None = None

    def run(self, workers: int) -> str | None:
        """Until every sample is dealt with, or a worker can't write any more: then why."""
        try:
            for _ in range(min(workers, len(self._queue))):
                self._start()
            while self._processes:
                self._hear()
        except BaseException:
            self._problem = self._problem or "stopped"
            self._drain()
            raise
        finally:
            self._selector.close()
        return self._problem

    def _start(self) -> None:
        """One more; where none can be, those that are there do its work."""
        try:
            with not_for_children():  # we close its input
                popen = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    # One process per core already.
                    env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
        except OSError as error:
            if self._processes:
                return
            raise CacheError(
                f"no worker process can be started ({error.strerror or error}): is there a limit on open files, "
                "processes or memory (ulimit -n, -u, -v)?"
            ) from error
        assert popen.stdout is not None
        process = _Process(popen)
        self._processes[popen.stdout.fileno()] = process
        self._selector.register(popen.stdout, selectors.EVENT_READ)
        self._supply(process)

    def _supply(self, process: _Process) -> None:
        pipe = process.popen.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead; the end of its reports says so
            while process.open and self._queue and len(process.sent) < _AHEAD and self._problem is None:
                number = self._queue.popleft()
                process.sent.append(number)
                sample = self._samples[number]
                line = json.dumps({"number": number, "image": sample.image, "mask": sample.mask})
                pipe.write(line.encode() + b"\n")
        if process.open and not process.sent and (self._problem is not None or not self._queue):
            process.open = False
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _hear(self) -> None:
        for key, _ in self._selector.select():
            process = self._processes[key.fd]
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._ended(key.fd, process)
                continue
            *lines, process.heard = (process.heard + data).split(b"\n")
            for line in lines:
                self._report(process, json.loads(line))
            self._supply(process)
            if self._problem is not None:
                for other in self._processes.values():
                    self._dismiss(other)

    def _report(self, process: _Process, report: dict[str, Any]) -> None:
        if "stopped" in report:
            self._problem = self._problem or report["stopped"]
            for outcome in process.unkept:
                self._undone(outcome)
            process.unkept.clear()
            process.sent.clear()
        elif "kept" in report:
            self._deaths_in_a_row = 0
            del process.unkept[: report["kept"]]
        else:
            number = report["number"]
            process.sent.remove(number)
            outcome = Outcome(
                number=number, state=report["outcome"], bytes=report.get("bytes", 0), error=report.get("error", "")
            )
            if outcome.state != "failed":
                process.unkept.append(outcome)
            self._done(outcome)

    def _ended(self, fd: int, process: _Process) -> None:
        self._selector.unregister(fd)
        del self._processes[fd]
        _close(process.popen)
        status = process.popen.wait()
        if status == 0 and not process.sent and not process.unkept:
            return
        self._redo(process, status)
        if self._problem is None and self._queue:
            self._start()

    def _redo(self, process: _Process, status: int) -> None:
        if status > 0:
            raise CacheError(
                f"a worker process ended with exit status {status}, for the reason that it printed; what was kept stays"
            )
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _DEATHS_IN_A_ROW:
            raise CacheError(
                f"{self._deaths_in_a_row} worker processes ended one after another, the last with {cause(status)}; "
                "what was kept stays, and the same command continues from there"
            )
        for outcome in process.unkept:
            self._undone(outcome)
        again = [outcome.number for outcome in process.unkept] + list(process.sent)
        if process.sent:
            culprit = process.sent[0]
            self._deaths[culprit] += 1
            if self._deaths[culprit] >= _DEATHS_PER_SAMPLE:
                again.remove(culprit)
                error = f"the process that decoded it ended with {cause(status)}, {self._deaths[culprit]} times"
                self._done(Outcome(number=culprit, state="failed", error=error))
        self._queue.extendleft(reversed(again))

    def _dismiss(self, process: _Process) -> None:
        """No more samples; it keeps what it has made and leaves."""
        if process.open:
            process.open = False
            assert process.popen.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.popen.stdin.close()

    def _drain(self) -> None:
        for process in self._processes.values():
            self._dismiss(process)
        for process in self._processes.values():
            assert process.popen.stdout is not None
            while process.popen.stdout.read(1 << 16):
                pass
            _close(process.popen)
            process.popen.wait()


def _close(popen: subprocess.Popen[bytes]) -> None:
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
