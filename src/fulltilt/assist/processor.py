"""`AsyncDataProcessor`: batches preprocessed in the background, while the GPU works on the one before."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from fulltilt.assist.assisted import Auto, CPUAssistedTraining, at_least_one, workers_for
from fulltilt.assist.future import TaskFuture
from fulltilt.assist.pool import PoolStats

log = logging.getLogger("fulltilt.assist")

_TASK = "data_preprocessing"
AHEAD_PER_WORKER = 2
"""Batches that wait for each worker: one to go on with at once, and one for when batches differ."""


class AsyncDataProcessor:
    """Threads that preprocess batches.

        with AsyncDataProcessor(preprocess=normalise) as processor:
            for batch in processor.map(loader):       # the next ones are made meanwhile
                train(batch)

    Args:
        num_workers: threads; "auto" takes what the core budget has for this, at least one.
        preprocess: called with each batch, by several threads at once; without it arrays become tensors.
        ordered: results come in the order in which batches went in; otherwise as they are completed.
        ahead: batches that may wait for a worker; then `submit_preprocessing` waits too. Two for each worker if None.
        keep: results that wait to be collected; beyond it the oldest are let go of, and the log says so.
    """

    def __init__(
        self,
        num_workers: int | Auto = "auto",
        preprocess: Callable[[Any], Any] | None = None,
        *,
        ordered: bool = True,
        ahead: int | None = None,
        keep: int = 256,
    ) -> None:
        workers = workers_for("async", num_workers)
        ahead = AHEAD_PER_WORKER * workers if ahead is None else ahead
        at_least_one(ahead=ahead, keep=keep)
        self._ordered, self._keep = ordered, keep
        self._window = ahead + workers
        self._assist = CPUAssistedTraining(workers, preprocess=preprocess, queue_size=ahead, keep_seconds=None)
        self._uncollected: deque[TaskFuture[Any]] = deque()
        self._lock = threading.Lock()
        self._let_go = 0

    def submit_preprocessing(self, batch: Any) -> TaskFuture[Any]:
        """Have a batch preprocessed; waits while too many wait already."""
        future = self._assist.submit(_TASK, batch)
        with self._lock:
            self._uncollected.append(future)
            self._make_room()
        return future

    def get_completed_results(self) -> list[Any]:
        """What has been completed since the last call, if anything. Never waits.

        A batch that failed raises its error here, when its turn has come; those before it are given first. A result
        that was taken from its future is not given again.
        """
        results: list[Any] = []
        with self._lock:
            still: deque[TaskFuture[Any]] = deque()
            while self._uncollected:
                future = self._uncollected.popleft()
                if not future.done():
                    still.append(future)
                    if self._ordered:
                        break
                elif not future.collected and not future.cancelled():
                    if future.exception() is None:
                        results.append(future.result())
                    elif results:  # it is raised by the next call
                        still.append(future)
                        break
                    else:
                        self._uncollected.extendleft(reversed(still))
                        future.result()
            self._uncollected.extendleft(reversed(still))
        return results

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Each batch preprocessed. Only as many are taken from `batches` as keep the workers busy."""
        futures = (self._assist.submit(_TASK, batch) for batch in batches)
        return _in_order(futures, self._window) if self._ordered else _as_completed(futures, self._window)

    @property
    def let_go(self) -> int:
        """Results that nobody collected."""
        return self._let_go

    def stats(self) -> PoolStats:
        """Where things stand."""
        return self._assist.stats()

    def close(self, *, cancel: bool = False, timeout: float | None = None) -> None:
        """Finish what is under way (or cancel what has not begun), then end the threads; at most `timeout` s."""
        self._assist.close(cancel=cancel, timeout=timeout)

    def __enter__(self) -> AsyncDataProcessor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._assist.__exit__(kind, error, trace)

    def _make_room(self) -> None:
        """Forget what was collected from the futures themselves; if that is not enough, the oldest that are done."""
        left = [future for future in self._uncollected if not future.collected]
        while len(left) > self._keep and (oldest := next((future for future in left if future.done()), None)):
            left.remove(oldest)
            self._let_go += 1
            if self._let_go == 1:
                log.warning(
                    "more than %d results were not collected; the oldest are let go of. Call get_completed_results(), "
                    "or the futures' result(), as often as submit_preprocessing()",
                    self._keep,
                )
        self._uncollected = deque(left)


def _in_order(futures: Iterator[TaskFuture[Any]], window: int) -> Iterator[Any]:
    under_way: deque[TaskFuture[Any]] = deque()
    try:
        for future in futures:
            under_way.append(future)
            del future
            if len(under_way) >= window:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for left in under_way:
            left.cancel()


def _as_completed(futures: Iterator[TaskFuture[Any]], window: int) -> Iterator[Any]:
    under_way: set[TaskFuture[Any]] = set()
    done: SimpleQueue[TaskFuture[Any]] = SimpleQueue()

    def next_one() -> Any:
        future = done.get()
        under_way.discard(future)
        return future.result()

    try:
        for future in futures:
            under_way.add(future)
            future.add_done_callback(done.put)
            del future
            if len(under_way) >= window:
                yield next_one()
        while under_way:
            yield next_one()
    finally:
        for left in under_way:
            left.cancel()
