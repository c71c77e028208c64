"""Where metrics are updated: threads of their own, from outputs and targets that have arrived on the host.

Lane(sets=4, joins=True)    metrics that add up whole numbers: each worker has copies of its own, whose counts are
                            added up at the end; batches that came together are counted as one
Lane(sets=1, joins=False)   all others: one worker, one batch after another, as in the loop
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fulltilt.assist.assisted import CPUAssistedTraining
from fulltilt.assist.future import TaskFuture
from fulltilt.assist.gather import Pair
from fulltilt.assist.tables import Counting, Rule
from fulltilt.errors import InputError

AHEAD = 4
"""Parcels that wait for a lane's workers; then the loop waits, too, and memory stays bounded."""
_SMOOTHING = 0.5
UNFIT = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What metrics raise for outputs or targets that are not theirs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parcel:
    """Batches handed over together."""

    count: int
    batches: Callable[[], Sequence[Pair]]
    """All of them, one by one; the worker takes them apart, if it has to."""
    joined: Pair | None = None
    """All of them as one, where that counts the same."""
    ready: Callable[[], None] | None = None
    """Waits for the copies to arrive."""
    without: frozenset[str] = frozenset()
    """Metrics that are counted elsewhere."""


@dataclass(slots=True, eq=False)
class _Pending:
    futures: deque[TaskFuture[Any]] = field(default_factory=deque)

    def add(self, future: TaskFuture[Any]) -> None:
        while self.futures and self.futures[0].done():
            self.futures.popleft()
        self.futures.append(future)

    def wait(self) -> None:
        while self.futures:
            try:
                self.futures[0].result()
            finally:
                if self.futures[0].done():  # and not if Ctrl-C came in between
                    self.futures.popleft()


class Lane:
    """Some metrics, and the threads that update them."""

    def __init__(self, metrics: Mapping[str, Metric], *, sets: int, joins: bool) -> None:
        """
        Args:
            metrics: are the lane's from now on, on the CPU.
            sets: workers, each with copies of the metrics; more than one for metrics that add up whole numbers only.
            joins: batches may be counted as one.
        """
        self.metrics = dict(metrics)
        self.failure: Exception | None = None
        """What went wrong first: most often, what a metric could not take."""
        self.seconds_per_batch: dict[str, float] = {}
        """What an update takes lately, once it is known."""
        self._joins = joins
        self._rules = {name: Rule(metric) for name, metric in self.metrics.items()} if joins else {}
        self._sets = [self._set_of(self.metrics)]
        self._sets += [self._set_of({n: m.clone() for n, m in self.metrics.items()}) for _ in range(sets - 1)]
        self._free: SimpleQueue[dict[str, Counting]] = SimpleQueue()
        for each in self._sets:
            self._free.put(each)
        self._assist: CPUAssistedTraining | None = None
        self._pending = _Pending()
        self._generation = 0
        self._threads = torch.get_num_threads()

    def put(self, parcel: Parcel) -> float:
        """Have a parcel counted; the seconds that this had to wait for room."""
        if self._assist is None:
            sets = len(self._sets)
            self._assist = CPUAssistedTraining(sets, queue_size=AHEAD + sets, keep_seconds=None)
            if not self._joins:
                # Sums of floats round as in the loop only if torch shares them out among as many threads as there.
                self._assist.submit(torch.set_num_threads, self._threads).result()
        began = time.perf_counter()
        self._pending.add(self._assist.submit(self._update, parcel, self._generation))
        return time.perf_counter() - began

    def drain(self) -> None:
        """Wait until all is counted; all copies' counts are then the first's."""
        self._pending.wait()
        first, *others = self._sets
        for other in others:
            for name, counting in other.items():
                add_counts(first[name].metric, counting.metric)

    def reset(self) -> None:
        """Start anew; what has not been counted yet is dropped."""
        self._generation += 1
        self._pending.wait()
        self.failure = None
        for each in self._sets:
            for counting in each.values():
                counting.metric.reset()

    def drop(self, name: str) -> Metric:
        """Let go of a metric, when all is counted."""
        self.drain()
        for each in self._sets:
            del each[name]
        self.seconds_per_batch.pop(name, None)
        return self.metrics.pop(name)

    def close(self) -> None:
        if self._assist is not None:
            self._assist.close(cancel=True)

    def _set_of(self, metrics: Mapping[str, Metric]) -> dict[str, Counting]:
        return {name: Counting(metric, self._rules.get(name)) for name, metric in metrics.items()}

    # --- on a worker -------------------------------------------------------------------------------------------------

    def _update(self, parcel: Parcel, generation: int) -> None:
        if parcel.ready is not None:
            parcel.ready()
        if generation != self._generation or self.failure is not None:
            return
        mine = self._free.get()
        try:
            batches = [parcel.joined] if self._joins and parcel.joined is not None else parcel.batches()
            due = {name: counting for name, counting in mine.items() if name not in parcel.without}
            spent = dict.fromkeys(due, 0.0)
            for outputs, target in batches:
                _count(due, outputs, target, spent)
            for name, seconds in spent.items():
                each = seconds / parcel.count
                self.seconds_per_batch[name] = _blend(self.seconds_per_batch.get(name), each)
        except Exception as error:  # raised again in the loop, at the next hand-over
            self.failure = self.failure or error
        finally:
            self._free.put(mine)


def _count(due: dict[str, Counting], outputs: Any, target: Any, spent: dict[str, float]) -> None:
    """One batch for all metrics; the time of a table is shared by those that count from it."""
    clock = time.perf_counter
    takers = [counting.rule for counting in due.values() if counting.takes_tables and counting.rule is not None]
    began = clock()
    tables = {rule.classes: rule.table(outputs, target) for rule in {rule.classes: rule for rule in takers}.values()}
    shared = (clock() - began) / max(len(takers), 1)
    for name, counting in due.items():
        began = clock()
        takes = counting.takes_tables
        found = tables.get(counting.rule.classes) if takes and counting.rule is not None else None
        try:
            counting.update(outputs, target, found)
        except torch.OutOfMemoryError:
            raise  # a RuntimeError, but not the batch's fault
        except UNFIT as error:
            raise unfit(name, outputs, target, error) from error
        spent[name] += clock() - began + shared * takes


def _blend(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)


def counts_only(metric: Metric) -> bool:
    """Whether it adds up integers and nothing else."""
    states = list(metric.metric_state.values())
    plain = not any(isinstance(child, Metric) for child in metric.children())
    summed = all(getattr(how, "__name__", "") == "dim_zero_sum" for how in metric._reductions.values())
    whole = all(isinstance(state, Tensor) and not state.is_floating_point() for state in states)
    return plain and summed and whole and bool(states)


def add_counts(metric: Metric, other: Metric) -> None:
    """What the other has counted becomes this one's."""
    if not other._update_count:
        return
    for name in other.metric_state:
        mine: Tensor = getattr(metric, name)
        setattr(metric, name, mine + getattr(other, name).to(mine.device))
    metric._update_count += other._update_count
    metric._computed = None
    other.reset()


def unfit(name: str, outputs: Any, target: Any, error: Exception) -> InputError:
    """What a metric said to a batch, with the batch's shapes."""
    shapes = " and ".join(
        f"{tuple(part.shape)} {part.dtype}" if isinstance(part, Tensor) else type(part).__name__
        for part in (outputs, target)
    )
    hint = "" if isinstance(outputs, Tensor) else "; a metric gets what the model returns: take its part in `update`"
    return InputError(f"metrics: {name} can't take outputs and targets of {shapes}: {error}{hint}")
