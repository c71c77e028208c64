"""One leg of the way through a data set: a number of workers that take requests and give batches in that order.

A leg takes requests from a stream until it is told to stop, and then gives what it has taken. So the number of workers
changes by beginning another leg on the same stream: none of the samples is lost, repeated or out of order.
"""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, default_collate

from fulltilt.errors import WorkerError, cause
from fulltilt.feed.datasets.parcel import Packing
from fulltilt.feed.datasets.shelf import Passing, Refused, Request, Shelf, WorkerInit, fetch
from fulltilt.feed.mover import deaths_are_ours
from fulltilt.machine.one_core import compute_with_one_core

Kind = Literal["processes", "threads"]
Transport = Literal["shm", "memfd"]

_LOOK_SECONDS = 1.0
"""How long nothing comes before it is looked whether a worker has died."""
_SEEN_DEAD_SECONDS = 0.5
"""A connection breaks a moment before its process can be seen to have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all legs of a data set have in common."""

    dataset: Any
    collate: Callable[[Any], Any] | None = None
    kind: Kind = "processes"
    depth: int = 2
    """Batches per worker, made or being made."""
    transport: Transport = "shm"
    varies: bool = False
    """The number of workers will be changed."""
    worker_init: Callable[[int], None] | None = None
    context: Any = None
    """How processes are started; None as the platform does."""
    timeout_seconds: float = 0.0

    def leg(self, workers: int) -> Leg:
        """So many workers; 0 is none beside the thread that asks."""
        if workers and self.kind == "processes":
            return ProcessLeg(self, workers)
        return ThreadLeg(self, workers)


class Leg(ABC):
    """So many workers on one stream of requests. Used by one thread at a time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.given = 0
        """Batches given out so far."""
        self._stream: Iterator[Request] = iter(())
        self._taken: deque[Request] = deque()
        self._stopped = False

    def begin(self, stream: Iterator[Request]) -> None:
        """Take requests from this stream from now on; what was under way is dropped."""
        self._stream, self._stopped = stream, False
        self._taken.clear()
        self._begin()

    def stop(self) -> None:
        """Take no more; what has been taken is still given out."""
        self._stopped = True

    def next(self) -> Any:
        """The next batch; StopIteration when all that was taken is out."""
        batch = self._next()
        self._taken.popleft()
        self.given += 1
        return batch

    @property
    def outstanding(self) -> list[Request]:
        """What was taken and not given out."""
        return list(self._taken)

    def _requests(self) -> Iterator[Request]:
        while not self._stopped and (request := next(self._stream, None)) is not None:
            self._taken.append(request)
            yield request

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _next(self) -> Any: ...

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return []

    @property
    def tids(self) -> list[int]:
        """The worker threads."""
        return []


class ProcessLeg(Leg):
    """Torch's own workers."""

    def __init__(self, work: Work, workers: int) -> None:
        super().__init__(workers)
        collate = work.collate or default_collate
        self._loader = _Loader(
            Shelf(work.dataset),  # type: ignore[arg-type]
            batch_sampler=_Requests(self._requests),  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=Passing(Packing(collate) if work.transport == "memfd" else collate),
            worker_init_fn=WorkerInit(work.worker_init),
            multiprocessing_context=work.context,
            timeout=work.timeout_seconds,
            prefetch_factor=work.depth,
            persistent_workers=True,
            generator=torch.Generator(),  # the trainer's is left alone
        )
        self._iterator: Any = None

    def _begin(self) -> None:
        self._iterator = iter(self._loader)
        if self._iterator._worker_pids_set:
            deaths_are_ours(self._iterator)
            if not self._loader.timeout:  # torch looks for dead workers when nothing has come for 5 s
                self._iterator._try_get_data = partial(self._iterator._try_get_data, timeout=_LOOK_SECONDS)

    def _next(self) -> Any:
        try:
            batch = next(self._iterator)
        except (OSError, EOFError, RuntimeError) as error:
            # What the data set raised begins with these words of torch's; all else can follow from a death.
            dead = None if str(error).startswith("Caught ") else self._dead()
            if dead is None:
                raise
            raise dead from error
        if isinstance(batch, Refused):
            raise batch.error
        return batch

    def _dead(self) -> DeadWorkerError | None:
        until = time.monotonic() + _SEEN_DEAD_SECONDS
        while time.monotonic() < until:
            for number, process in enumerate(self._iterator._workers):
                if process.exitcode not in (None, 0):
                    return DeadWorkerError(
                        f"worker {number} (pid {process.pid}) was ended by {cause(process.exitcode)} "
                        f"{'at' if self._loader.prefetch_factor == 1 else 'at or soon after'} "
                        f"the batch of samples {self._made_by(number)}"
                    )
            time.sleep(0.02)
        return None

    def _made_by(self, worker: int) -> str:
        """What a worker was at: the first of its requests that is not made."""
        position = self._iterator._rcvd_idx
        for number, request in enumerate(self._taken, start=position):
            task = self._iterator._task_info.get(number, ())
            if len(task) == 1 and task[0] == worker:
                return str(request)
        return "(none)"

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator._shutdown_workers()
            self._iterator.__dict__.pop("_try_get_data", None)  # a circle, which would keep pipes open
        self._iterator = self._loader._iterator = None

    @property
    def pids(self) -> list[int]:
        iterator = self._iterator
        return [] if iterator is None else [process.pid for process in iterator._workers]


class ThreadLeg(Leg):
    """Threads of this process; with 0 workers the thread that asks does the work."""

    def __init__(self, work: Work, workers: int) -> None:
        super().__init__(workers)
        # A copy where processes may be forked later: what a data set opens on first use must not be carried into them.
        self._dataset = _copy(work.dataset) if work.kind == "processes" and work.varies else work.dataset
        self._collate = work.collate or default_collate
        self._ahead = workers * work.depth
        self._pending: deque[Future[Any]] = deque()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fulltilt-worker") if workers else None
        self._tids: list[int] = []
        if self._threads is not None:
            self._tids = _start_narrow(self._threads, workers)
        self._source: Iterator[Request] = iter(())

    def _begin(self) -> None:
        self._drop()
        self._source = self._requests()
        self._top_up()

    def _next(self) -> Any:
        if self._threads is None:
            return self._make(next(self._source))
        self._top_up()
        if not self._pending:
            raise StopIteration
        return self._pending.popleft().result()

    def _top_up(self) -> None:
        while self._threads is not None and len(self._pending) < self._ahead:
            request = next(self._source, None)
            if request is None:
                return
            self._pending.append(self._threads.submit(self._make, request))

    def _make(self, request: Request) -> Any:
        # No seed: these random numbers are the trainer's, too.
        return self._collate(fetch(self._dataset, request.indices))

    def _drop(self) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        self._drop()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    @property
    def tids(self) -> list[int]:
        return self._tids


def _copy(dataset: Any) -> Any:
    """With attributes of its own; the same where it can't be copied."""
    try:
        return copy.copy(dataset)
    except (TypeError, copy.Error):
        return dataset


class DeadWorkerError(WorkerError):
    """A worker process has ended by a signal or by itself."""


class _Loader(DataLoader[Any]):
    """A DataLoader that does not warn of more workers than cores: where they wait, that is meant."""

    def check_worker_number_rationality(self) -> None:
        pass


class _Requests:
    """A batch sampler: what a leg takes, anew for each beginning."""

    def __init__(self, requests: Callable[[], Iterator[Request]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self._requests()


def _start_narrow(threads: ThreadPoolExecutor, count: int) -> list[int]:
    """Start all threads, each of which computes with one core."""
    here = threading.Barrier(count)

    def narrow() -> int:
        compute_with_one_core()
        here.wait()
        return threading.get_native_id()

    return [future.result() for future in [threads.submit(narrow) for _ in range(count)]]
