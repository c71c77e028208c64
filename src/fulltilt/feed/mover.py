"""Batches of an iterator, on the device before they are asked for.

    iterator ─► a thread that fetches and pins ─► a short queue ─► copy on a stream of its own ─► the step's stream

The thread takes over what the loop would wait for: fetching, pinning, and where there are no workers the data set's own
work. Its pinned memory comes from torch's cache, which waits for copies before it hands a block out again.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import signal_handling

from fulltilt.errors import WorkerError, cause
from fulltilt.feed.in_flight import InFlight
from fulltilt.feed.waiting import Waiting, told_of
from fulltilt.nested import map_tensors


class Mover:
    """Moves what an iterator gives to a device, `depth` batches ahead on the host and `ahead` on the device."""

    def __init__(self, device: torch.device, *, depth: int, ahead: int) -> None:
        self._device, self._depth, self._ahead = device, depth, ahead
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._staged: deque[tuple[Any, torch.cuda.Event | None]] = deque()
        self._fetcher: _Fetcher | None = None
        self._in_flight = InFlight(device)
        self._batch_bytes = 0
        self.inspect: Callable[[Any], None] | None = None
        """Shown every batch in the thread that fetches, before it is pinned: what it raises comes out in its place."""
        self.workers: Callable[[], list[int]] | None = None
        """The processes that make batches, to tell of where none comes."""
        self.waited_seconds = 0.0
        """How long training had nothing to go on with before the last batch; 0 if the device had work all the while."""

    def start(self, iterator: Iterator[Any]) -> None:
        """Begin with an iterator; what was under way is dropped."""
        self.stop()
        pin = self._stream is not None
        self._fetcher = _Fetcher(iterator, self._depth, pin=pin, show=self._show, workers=self.workers)

    def stop(self, *, patience: float = math.inf) -> None:
        """Drop what is under way, and wait until the thread has left the iterator. After `patience` seconds the
        processes that it waits for are killed: one that was stopped, or hangs in a dead file system, never answers."""
        self._staged.clear()
        if self._fetcher is not None:
            self._fetcher.stop(patience)
            self._fetcher = None

    def next(self) -> Any:
        """The next batch on the device; StopIteration at the end, and whatever error the iterator raised."""
        if self._fetcher is None:
            raise StopIteration
        self._in_flight.launched(self._batch_bytes)
        started = time.perf_counter()
        while len(self._staged) <= self._ahead:
            item = self._fetcher.get(wait=not self._staged)
            if item is None:
                break
            self._staged.append(self._moved(item.batch))
        if not self._staged:
            raise StopIteration
        self.waited_seconds = time.perf_counter() - started if self._in_flight.is_idle else 0.0
        batch, ready = self._staged.popleft()
        if ready is None:
            return batch
        current = torch.cuda.current_stream(self._device)
        current.wait_event(ready)

        self._batch_bytes = 0

        def keep(tensor: Tensor) -> Tensor:
            if tensor.is_cuda:
                tensor.record_stream(current)  # its memory stays until this stream is through with it
                self._batch_bytes += tensor.nbytes
            return tensor

        return map_tensors(keep, batch)

    def _show(self, batch: Any) -> None:
        if self.inspect is not None:
            self.inspect(batch)

    def _moved(self, batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        if self._stream is None:
            return map_tensors(lambda tensor: tensor.to(self._device), batch), None
        with torch.cuda.stream(self._stream):
            moved = map_tensors(lambda tensor: tensor.to(self._device, non_blocking=True), batch)
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(self._stream)
        return moved, ready


class _Item:
    """A batch, the end, or an error, on its way out of the thread."""

    def __init__(self, batch: Any = None, *, end: bool = False, error: BaseException | None = None) -> None:
        self.batch, self.end, self.error = batch, end, error


class _Fetcher:
    """A thread that runs an iterator ahead."""

    def __init__(
        self,
        iterator: Iterator[Any],
        depth: int,
        *,
        pin: bool,
        show: Callable[[Any], None],
        workers: Callable[[], list[int]] | None,
    ) -> None:
        self._iterator, self._pin, self._show, self._workers = iterator, pin, show, workers
        self._queue: queue.Queue[_Item] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._over: _Item | None = None
        self._thread = threading.Thread(target=self._run, name="fulltilt-fetch", daemon=True)
        self._thread.start()

    def get(self, *, wait: bool) -> _Item | None:
        """The next batch; None at the end, or when there is none yet and none is waited for."""
        if self._over is None:
            item = self._next(wait=wait)
            if item is None:
                return None
            if not item.end and item.error is None:
                return item
            self._over = item
        if self._over.error is not None and wait:
            error, self._over = self._explained(self._over.error), _Item(end=True)
            try:
                raise error
            finally:
                del error  # its traceback leads to the loop's feed: kept here, the feed could never be forgotten
        return None

    def _next(self, *, wait: bool) -> _Item | None:
        waiting = Waiting(self._held_up)
        while True:
            try:
                return self._queue.get(block=wait, timeout=waiting.seconds)
            except queue.Empty:
                if not wait:
                    return None
                waiting.say()

    def _held_up(self) -> str:
        pids = self._pids()
        return f"its workers: {told_of(pids)}" if pids else "what makes it, in this process"

    def _pids(self) -> list[int]:
        own = getattr(self._iterator, "_workers", ())
        return [process.pid for process in own] if self._workers is None else self._workers()

    def _explained(self, error: BaseException) -> BaseException:
        """Where a worker process is dead, what the iterator raised (a lost connection, say) is only a consequence."""
        workers = list(enumerate(getattr(self._iterator, "_workers", ())))
        # A connection breaks a moment before its process can be seen to have ended.
        until = time.monotonic() + (0.5 if isinstance(error, OSError | EOFError | RuntimeError) else 0.0)
        while True:
            for number, process in workers:
                if process.exitcode not in (None, 0):
                    told = WorkerError(
                        f"DataLoader worker {number} (pid {process.pid}) was ended by {cause(process.exitcode)}. "
                        "The system does that when memory runs short: try fewer workers or smaller batches"
                    )
                    told.__cause__ = error
                    return told
            if not workers or time.monotonic() >= until:
                return error
            time.sleep(0.02)

    def stop(self, patience: float) -> None:
        self._stopped.set()
        while not self._leaves(patience):
            if pids := self._pids():
                deaths_are_ours(self._iterator)
                _tell(pids, signal.SIGKILL)
                self._leaves(patience)  # else it is left behind: not even that ends a process that waits for a disk
                return
        if patience < math.inf:  # they are told to end next: one that was stopped would hear it never
            _tell(self._pids(), signal.SIGCONT)

    def _leaves(self, seconds: float) -> bool:
        """Whether the thread ends within so long."""
        until = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < until:
            with suppress(queue.Empty):  # a full queue would keep the thread from seeing that it is to stop
                self._queue.get(timeout=0.05)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for batch in self._iterator:
                self._show(batch)
                ready = map_tensors(_pinned, batch) if self._pin else batch
                self._queue.put(_Item(ready))
                if self._stopped.is_set():
                    return
            self._queue.put(_Item(end=True))
        except BaseException as error:  # raised again where the batch is asked for
            self._queue.put(_Item(error=error))


def _tell(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()


def deaths_are_ours(iterator: Any) -> None:
    """To tell, of a DataLoader's workers: torch would raise in the main thread, wherever that is."""
    if getattr(iterator, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
        iterator._worker_pids_set = False
