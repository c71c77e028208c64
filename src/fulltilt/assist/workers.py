"""The threads that carry tasks out. One that dies is replaced; one stuck in a task past its time is left to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from fulltilt.assist.policy import may_replace
from fulltilt.assist.queue import TaskQueue
from fulltilt.assist.tasks import Task
from fulltilt.errors import WorkerError
from fulltilt.machine.one_core import compute_with_one_core

log = logging.getLogger("fulltilt.assist")


_LOOK_SECONDS = 0.05
"""How often it is looked, while the crew is waited for, whether somebody's time is up."""


class Worker:
    """One thread's own record; nobody else writes the figures."""

    __slots__ = ("abandoned", "done", "failed", "inner", "late", "seconds", "task", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.task: Task | None = None
        self.inner: list[Task] = []
        """Tasks that its task waits for, and that it does itself."""
        self.late: Task | None = None
        """The latest that was past its time."""
        self.abandoned = False
        """Another has taken its place."""
        self.done = self.failed = 0
        self.seconds = 0.0
        """Time spent in tasks."""

    @property
    def stuck(self) -> bool:
        """It is in a task that nobody waits for any more."""
        return self.late is not None and self.late in self.tasks

    @property
    def busy(self) -> bool:
        return self.task is not None and not self.abandoned and not self.stuck

    @property
    def tasks(self) -> list[Task]:
        """What it is in: a task, and those that this one waits for."""
        return [task for task in (self.task, *self.inner) if task is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the workers have done so far, those that have left included."""

    done: int
    failed: int
    busy_seconds: float
    workers: int
    able: int
    """Workers that will take tasks, now or after the one that they are at."""
    busy: int
    replaced: int
    """Workers started in place of others that died or are stuck."""
    abandoned: int
    """Threads that are stuck in tasks past their time."""


class Crew:
    """So many workers on one queue."""

    def __init__(self, queue: TaskQueue, workers: int, *, run: Callable[[Task, Worker], None]) -> None:
        self._queue, self._run = queue, run
        self.wanted = workers
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {}  # by thread
        self._left = Worker()  # the figures of all who have left
        self._replaced = 0
        self._closed = False
        self._numbers = count()
        with self._lock:
            self._fill()

    def worker(self) -> Worker | None:
        """The current thread's record, if it belongs to the crew."""
        return self._workers.get(threading.get_ident())

    def work(self) -> Work:
        with self._lock:
            all_of_them = [*self._workers.values(), self._left]
            return Work(
                done=sum(worker.done for worker in all_of_them),
                failed=sum(worker.failed for worker in all_of_them),
                busy_seconds=sum(worker.seconds for worker in all_of_them),
                workers=sum(not worker.abandoned for worker in self._workers.values()),
                able=sum(not worker.abandoned and not worker.stuck for worker in self._workers.values()),
                busy=sum(worker.busy for worker in self._workers.values()),
                replaced=self._replaced,
                abandoned=sum(worker.abandoned for worker in self._workers.values()),
            )

    def abandon(self, task: Task) -> None:
        """Nobody waits for this task any more: whoever is at it leaves when it can, and another starts now."""
        with self._lock:
            stuck = sum(worker.abandoned for worker in self._workers.values())
            for worker in self._workers.values():
                if task in worker.tasks:
                    worker.late = task
                    if worker.abandoned or self._closed:
                        return
                    if not may_replace(stuck, self.wanted):
                        log.warning(
                            "%d threads are stuck in tasks past their time; no more are started in their place", stuck
                        )
                        return
                    worker.abandoned = True
                    self._replaced += 1
                    self._fill()
                    return

    def close(self, until: float) -> list[Worker]:
        """Wait for the workers to leave a closed queue, until a time; who is still in a task.

        Those in tasks past their time may never leave, and are not waited for.
        """
        with self._lock:
            self._closed = True
            workers = [worker for worker in self._workers.values() if worker.thread is not threading.current_thread()]
        for worker in workers:
            while worker.thread is not None and worker.thread.is_alive() and not worker.stuck:
                left = until - time.perf_counter()
                if left <= 0:
                    break
                worker.thread.join(min(left, _LOOK_SECONDS))
        with self._lock:
            return [worker for worker in workers if worker in self._workers.values() and worker.tasks]

    def _fill(self) -> None:
        """Start as many as are missing; the lock is held."""
        for _ in range(self.wanted - sum(not worker.abandoned for worker in self._workers.values())):
            worker = Worker()
            thread = threading.Thread(
                target=self._work, args=(worker,), name=f"fulltilt-assist-{next(self._numbers)}", daemon=True
            )
            worker.thread = thread
            try:
                thread.start()  # returns when the thread has begun, so that its number is known
            except RuntimeError as error:
                if not self._workers:
                    raise WorkerError(f"no thread could be started for tasks: {error}; is there a limit?") from error
                log.warning("a thread could not be started (%s); %d go on", error, len(self._workers))
                return
            if thread.ident is not None:
                self._workers[thread.ident] = worker

    def _work(self, worker: Worker) -> None:
        died = True
        try:
            compute_with_one_core()  # workers are as many as there are cores to spare
            while not worker.abandoned:
                worker.task = self._queue.take()
                if worker.task is None:
                    break
                self._run(worker.task, worker)
                worker.task = None
            died = False
        except BaseException as error:
            # Not a task's own exception, which is its caller's: memory that is gone, or SystemExit in a callback.
            log.warning("%s died (%s); another goes on", threading.current_thread().name, repr(error))
            if worker.task is not None:
                worker.task.future.finish(error=worker.task.failed(error))
        finally:
            self._leave(worker, died)

    def _leave(self, worker: Worker, died: bool) -> None:
        with self._lock:  # held while workers are started, so this one is on the list by now
            self._workers.pop(threading.get_ident(), None)
            self._left.done += worker.done
            self._left.failed += worker.failed
            self._left.seconds += worker.seconds
            if not self._closed:
                self._replaced += died
                self._fill()
