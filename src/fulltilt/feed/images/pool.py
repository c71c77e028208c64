"""The decoder processes, seen from the trainer: start them, hand out slots, hear when a slot is full, replace the dead.

One thread waits for reports; it wakes a few hundred times a second and holds the interpreter lock for microseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from fulltilt.errors import WorkerError, cause
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.decoder import Desk
from fulltilt.feed.images.kept import Kept
from fulltilt.feed.images.slot import Slot, Status
from fulltilt.feed.images.tally import Counts, Tally
from fulltilt.feed.images.wire import Report, Reports, Task, send_task, tasks_waiting
from fulltilt.feed.waiting import told_of

log = logging.getLogger("fulltilt.feed")

_DEATHS_PER_SAMPLE = 2
"""A sample whose decoding ends its process so often is given up."""
_DEATHS_IN_A_ROW = 20


@dataclass(slots=True)
class _Filling:
    """A slot under way."""

    round: int
    left: int
    failures: dict[int, str] = field(default_factory=dict)
    """Position → what went wrong."""


class Pool:
    """Decoder processes for one catalog and one ring of slots."""

    def __init__(
        self,
        catalog: Catalog,
        slots: Sequence[Slot],
        *,
        workers: int,
        most: int,
        quality: str,
        channels: int,
        cache: str | None,
        kept: Kept | None,
        cache_to_come: str | None,
        done: Callable[[int, dict[int, str]], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            most: the largest number of workers; there is no room for the notes of more.
            kept: memory in which samples may be kept, and where it is said what is kept where.
            cache_to_come: the folder of a cache that may be there later.
            done: called with a slot's number and its failures when every sample has been dealt with.
            broken: called once with the error when the pool can't go on.
        """
        self._catalog, self._slots = catalog, slots
        self._quality, self._channels, self._cache = quality, channels, cache
        self._kept, self._cache_to_come = kept, cache_to_come
        self._done, self._broken = done, broken
        self.most = most
        """The largest number of processes that there can be."""
        self._desk = Desk.create(most)
        self._tally = Tally.create(most)
        self._counts: Counts | None = None
        self._task_in, self._task_out = os.pipe()
        os.set_blocking(self._task_out, False)
        os.set_blocking(self._task_in, False)  # decoders take under a lock, and must not wait with it
        self._backlog: deque[Task] = deque()
        self._sent: deque[Task] = deque()
        """What has gone into the pipe and may not have been taken yet."""
        self._numbers = count()
        self._report_in, self._report_out = os.pipe()
        self._reports = Reports(self._report_in)
        self._wake_in, self._wake_out = os.pipe()
        self._poll = select.poll()
        for fd in (self._report_in, self._wake_in):
            self._poll.register(fd, select.POLLIN)
        self._lock = threading.RLock()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._pids: dict[int, int] = {}  # pidfd → worker
        self._filling: dict[int, _Filling] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}
        self._deaths: Counter[int] = Counter()
        self._deaths_in_a_row = 0
        self._leaving = 0
        """Processes that have been told to leave and have not ended yet."""
        self._closed = False
        self.wanted = 0
        """The number of processes that is aimed at."""
        self._thread = threading.Thread(target=self._listen, name="fulltilt-feed", daemon=True)
        try:
            self.resize(workers)
            self._thread.start()
        except BaseException:
            self._end()
            raise

    def fill(self, slot: int, round_: int, parts: Sequence[tuple[int, int]]) -> None:
        """Have parts (first, count) of a slot decoded; `done` is called when all are."""
        with self._lock:
            self._filling[slot] = _Filling(round=round_, left=sum(count for _, count in parts))
            for first, count in parts:
                self._send(Task(slot, round_, first, count))

    def resize(self, workers: int) -> None:
        """Go on with another number of processes, from 1 to `most`; none of their samples is lost."""
        with self._lock:
            self.wanted = max(1, min(workers, self.most))
            self._start_missing()
            for _ in range(self._staying - self.wanted):
                self._leaving += 1
                self._send(Task(-1, 0, 0, 0))  # whoever takes this leaves

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in self._workers.values()]

    @property
    def counts(self) -> Counts:
        """What the decoders have done so far, those that have ended included."""
        return self._tally.total() if self._counts is None else self._counts

    def held_up(self) -> str:
        """The decoders in words, each with the file that it is at."""
        with self._lock:
            at = {process.pid: self._desk.read(worker) for worker, process in self._workers.items()}
        told = [f"{told_of([pid])} at {self._path_of(*task)}" for pid, task in at.items() if task is not None]
        return "; ".join(told) or f"{told_of(at)}, at no file"

    def close(self) -> None:
        """Stop the processes and free everything; waits until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.write(self._wake_out, b"x")  # the thread sees that it is to end
        self._thread.join()
        self._end()

    def _end(self) -> None:
        os.close(self._task_out)  # every decoder reads the end of its tasks
        os.close(self._task_in)
        with self._lock:
            for process in self._workers.values():
                process.kill()  # nobody waits for what it was doing
            for process in self._workers.values():
                process.wait()
            for fd in self._pids:
                os.close(fd)
        for fd in (self._report_in, self._report_out, self._wake_in, self._wake_out):
            os.close(fd)
        self._desk.close()
        self._counts = self._tally.total()
        self._tally.close()

    def _path_of(self, task: Task, position: int) -> str:
        return self._catalog.image(int(self._slots[task.slot].index[position]))

    @property
    def _staying(self) -> int:
        return len(self._workers) - self._leaving

    def _start_missing(self) -> None:
        """As many as are wanted; those that were told to leave keep their numbers until they have."""
        for worker in range(self.most):
            if self._staying >= self.wanted:
                return
            if worker in self._workers:
                continue
            try:
                self._start(worker)
            except OSError as error:
                reason = (
                    f"a decoder process can't be started ({error.strerror or error}): is there a limit on open files, "
                    "processes or memory (ulimit -n, -u, -v)?"
                )
                if self._staying < 1:
                    raise WorkerError(reason) from error
                log.warning("%s %d go on", reason, self._staying)
                return

    def _start(self, worker: int) -> None:
        inherited = [self._task_in, self._report_out, self._desk.fd, self._catalog.fd, *(s.fd for s in self._slots)]
        inherited += [self._tally.fd, *(() if self._kept is None else (self._kept.fd,))]
        options = {
            "worker": worker,
            "tasks": self._task_in,
            "reports": self._report_out,
            "desk": self._desk.fd,
            "catalog": self._catalog.fd,
            "slots": [slot.fd for slot in self._slots],
            "samples": self._slots[0].samples,
            "parent": os.getpid(),
            "quality": self._quality,
            "channels": self._channels,
            "cache": self._cache,
            "tally": self._tally.fd,
            "kept": None if self._kept is None else self._kept.fd,
            "cache_to_come": self._cache_to_come,
        }
        self._desk.clear(worker)
        process = subprocess.Popen(
            # -P: a queue.py or json.py where the trainer was started is not for this process to import.
            [sys.executable, "-P", "-m", "fulltilt.feed.images.decoder", json.dumps(options)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C at the terminal is for the trainer, which closes the pipe
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        self._workers[worker] = process
        self._pids[pidfd] = worker
        self._poll.register(pidfd, select.POLLIN)

    def _send(self, task: Task) -> None:
        """Never waits: what the pipe can't take now goes out when the decoders have made room."""
        task = task._replace(number=next(self._numbers))
        if not self._backlog:
            with contextlib.suppress(BlockingIOError):
                self._write(task)
                return
        self._backlog.append(task)
        os.write(self._wake_out, b"b")

    def _write(self, task: Task) -> None:
        send_task(self._task_out, task)
        while self._sent and self._desk.is_claimed(self._sent[0].number):
            self._sent.popleft()
        self._sent.append(task)

    # --- the listening thread --------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                ready = {fd for fd, _ in self._poll.poll()}
                if self._wake_in in ready:
                    os.read(self._wake_in, 4096)
                    if self._closed:
                        return
                    self._poll.register(self._task_out, select.POLLOUT)
                if self._task_out in ready:
                    self._flush()
                if self._report_in in ready:
                    self._hear()
                else:  # what the dead had still to say has been heard
                    for fd in ready & self._pids.keys():
                        self._bury(fd)
        except BaseException as error:
            self._broken(error)

    def _flush(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            while self._backlog:
                self._write(self._backlog[0])
                self._backlog.popleft()
            self._poll.unregister(self._task_out)

    def _hear(self) -> None:
        reports = self._reports.receive()
        if reports is None:
            raise WorkerError("the pipe from the decoders is closed")
        self._deaths_in_a_row = 0
        full: list[tuple[int, dict[int, str]]] = []
        with self._lock:
            for report in reports:
                if not report.text:
                    self._reported[report.worker] = (report.slot, report.round, report.first)
                full += self._account(report)
        self._tell(full)

    def _account(self, report: Report) -> list[tuple[int, dict[int, str]]]:
        """Cross off what a report says is dealt with; the slot, when that was its last."""
        filling = self._filling.get(report.slot)
        if filling is None or filling.round != report.round:
            return []
        if report.text:
            filling.failures[report.first] = report.text
        filling.left -= report.samples
        if filling.left:
            return []
        del self._filling[report.slot]
        return [(report.slot, filling.failures)]

    def _tell(self, full: list[tuple[int, dict[int, str]]]) -> None:
        for slot, failures in full:  # without the lock: who hears this may ask for more at once
            self._done(slot, failures)

    def _bury(self, pidfd: int) -> None:
        """A decoder has ended: as it was told to, or with work in its hands, which others take over."""
        full: list[tuple[int, dict[int, str]]] = []
        with self._lock:
            self._poll.unregister(pidfd)
            os.close(pidfd)
            worker = self._pids.pop(pidfd)
            status = self._workers.pop(worker).wait()
            at = self._desk.read(worker)
            self._send_lost(at)
            if status == 0 and at is None:
                self._leaving = max(0, self._leaving - 1)
                self._start_missing()  # more may have been wanted since, when no number was free
                return
            self._deaths_in_a_row += 1
            if self._deaths_in_a_row > _DEATHS_IN_A_ROW:
                raise WorkerError(
                    f"{_DEATHS_IN_A_ROW} decoder processes ended one after the other ({cause(status)}) without "
                    "decoding anything: is memory short, or does `python -P -m fulltilt.feed.images.decoder` not start?"
                )
            last = "between two files"
            if at is not None and self._reported.get(worker) != at[0][:3]:
                task, position = at
                last = f"at {self._path_of(task, position)}"
                full = self._take_over(task, position, status)
            log.warning("decoder %d was ended by %s, %s; another goes on", worker, cause(status), last)
            self._start_missing()
        self._tell(full)

    def _send_lost(self, at: tuple[Task, int] | None) -> None:
        """A decoder that died with a task which it had not noted yet took it along: it is sent again."""
        if at is not None:
            self._desk.claim(at[0].number)  # noted, so it is not lost: others take it over
        with self._desk.locked():
            taken = len(self._sent) - tasks_waiting(self._task_in)
            lost = [task for task in islice(self._sent, taken) if not self._desk.is_claimed(task.number)]
            for task in lost:
                self._desk.claim(task.number)
        for task in lost:
            self._send(task)

    def _take_over(self, task: Task, position: int, status: int) -> list[tuple[int, dict[int, str]]]:
        """Cross off what a dead decoder had done of its task, and have others do the rest."""
        slot, filling = self._slots[task.slot], self._filling.get(task.slot)
        if filling is None or filling.round != task.round:
            return []
        full = []
        self._deaths[int(slot.index[position])] += 1
        for at in range(task.first, task.first + task.samples):
            done = Report(-1, task.slot, task.round, at, 1)
            if slot.status[at] in (Status.DONE, Status.NO_ROOM):
                full += self._account(done)
            elif slot.status[at] in (Status.WAITING, Status.WAITING_AS_FILE) and at not in filling.failures:
                if self._deaths[int(slot.index[at])] < _DEATHS_PER_SAMPLE:
                    self._send(Task(task.slot, task.round, at, 1))
                else:
                    slot.status[at] = Status.FAILED
                    text = f"decoding it ended its process {_DEATHS_PER_SAMPLE} times ({cause(status)})"
                    full += self._account(done._replace(text=text))
        return full
