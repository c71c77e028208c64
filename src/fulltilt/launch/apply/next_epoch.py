"""Workers that live on begin with the next epoch while the last batches of this one are waited for.

    indices of this epoch ─► workers ─► batches …  the last ones
    indices of the next ───► workers ────────────────────────────► its first batches, ready when it begins

Else they would have less and less to do towards an epoch's end, and all begin at once with the next, whose first batch
the loop then waits for. The order of the next epoch is drawn when it begins, so it has to be predicted: it follows from
the state of torch's generator at that moment, and that from its state now and from how often others mostly draw in
between (an evaluation's loader draws once). Where the state is another one after all, what was loaded is thrown away,
and the epoch begins as it would have. So order and draws are the script's own. A data set with which the script shares
values is left alone: they may be others when the epoch begins.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from fulltilt.launch.apply.living_on import draw_seed, for_epoch
from fulltilt.launch.watch.changed import shares
from fulltilt.machine.memory import read_shared_memory

_MOST_DRAWS = 8
"""Of others between two epochs; where there are more, nothing is predicted."""
_MOST_MISSES = 2
"""In a row; then it is left to be."""
_ROOM = 3
"""How many times the shared memory that an epoch's batches take has to be free."""


class NextEpoch:
    """Of one loader."""

    def __init__(self, loader: Any) -> None:
        self._loader: Callable[[], Any] = weakref.ref(loader)
        self._others: Counter[int | None] = Counter()
        """How often others drew before an epoch began, and how many epochs that was so; None: something else."""
        self._misses = 0
        self._free = _free_bytes()
        """Of shared memory, when the first batches were yet to come."""
        self._end: int | None = None
        """The number of the first batch behind this epoch, once all of it are in the workers' hands."""
        self._left: Any = None
        """The generator's state then."""
        self._predicted: _Predicted | None = None

    def begun(self, inner: Any, state: Any) -> None:
        """An epoch has begun as always; `state` is what its workers have of the script's."""
        if self._predicted is not None:
            self._misses += 1
        self._end = self._left = self._predicted = None
        if fits(self._loader()) and not shares(state):
            inner._sampler_iter = _Indices(self, inner, inner._sampler_iter)

    def is_over(self, inner: Any) -> bool:
        """What follows is the next epoch's."""
        return self._end is not None and inner._rcvd_idx >= self._end

    def forget(self) -> None:
        """The next epoch is to begin as always."""
        self._predicted = None

    def goes_on(self, inner: Any) -> bool:
        """The next epoch begins, and its batches are on their way. Else it has to begin as always."""
        state = torch.default_generator.get_state()
        if self._left is not None:
            self._others[draws_between(self._left, state)] += 1
        loader, predicted = self._loader(), self._predicted
        given = inner._send_idx - (self._end or 0)
        if predicted is None or not given or not self.is_over(inner) or not predicted.holds(loader, state):
            return False
        self._misses = 0
        self._end = self._left = self._predicted = None
        inner._num_yielded = 0
        inner._sampler_iter = _Indices(self, inner, predicted.begun(loader, given))
        return True

    def ended(self, inner: Any) -> Iterator[Any]:
        """All of this epoch is in the workers' hands: what to give them next."""
        if self._end is None:
            loader = self._loader()
            self._end, self._left = inner._send_idx, torch.default_generator.get_state()
            others = self._mostly()
            if others is not None and fits(loader) and self._has_room():
                self._predicted = _Predicted(loader, self._left, others, self._end)
                inner._worker_queue_idx_cycle = itertools.cycle(range(inner._num_workers))  # as an epoch begins
        return iter(()) if self._predicted is None else self._predicted.indices

    def _mostly(self) -> int | None:
        """How often others will draw before the next epoch; None where that can't be told, or did not hold."""
        tellable = bool(self._others) and self._misses < _MOST_MISSES
        return self._others.most_common(1)[0][0] if tellable else None

    def _has_room(self) -> bool:
        """Batches wait for their epoch in shared memory, beside an evaluation's; workers that fill it are killed."""
        free = _free_bytes()
        return free >= _ROOM * (self._free - free)


class _Indices:
    """What an iterator gets the next batch's indices from."""

    def __init__(self, epochs: NextEpoch, inner: Any, indices: Iterator[Any]) -> None:
        self._epochs, self._indices = epochs, indices
        self._inner: Callable[[], Any] = weakref.ref(inner)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._indices)
        except StopIteration:
            return next(self._epochs.ended(self._inner()))


class _Predicted:
    """An epoch that begins after so many draws of others; `number` tells it from those that the workers had before."""

    def __init__(self, loader: Any, state: Any, others: int, number: int) -> None:
        draws = torch.Generator()
        draws.set_state(state)
        for _ in range(others):
            draw_seed(draws)
        self._expected, self._shape, self._number = draws.get_state(), _shape(loader), number
        self._seed, order = draw_seed(draws), torch.Generator().manual_seed(draw_seed(draws))
        samples, count, size, drop_last = self._shape
        again = RandomSampler(range(samples), num_samples=count, generator=order)
        self.indices = map(self._of_it, BatchSampler(again, size, drop_last))

    def holds(self, loader: Any, state: Any) -> bool:
        """It begins as predicted."""
        return fits(loader) and self._shape == _shape(loader) and torch.equal(state, self._expected)

    def begun(self, loader: Any, given: int) -> Iterator[Any]:
        """It begins: torch's generator and the script's own sampler draw as always. What comes behind the batches that
        were given."""
        draw_seed(torch.default_generator)
        indices = iter(loader.batch_sampler)
        for _ in range(given):
            next(indices)
        return map(self._of_it, indices)

    def _of_it(self, indices: list[Any]) -> Any:
        return for_epoch(indices, self._seed, self._number)


def fits(loader: Any) -> bool:
    """In an order that torch draws by itself; whoever has a sampler of his own may count how often it is asked."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return (
        type(sampler) is RandomSampler
        and type(batches) is BatchSampler
        and batches.sampler is sampler
        and not sampler.replacement
        and sampler.generator is None
        and loader.generator is None
        and getattr(loader, "in_order", True)
        and len(sampler.data_source) > 0
    )


def _shape(loader: Any) -> tuple[Any, ...]:
    sampler, batches = loader.sampler, loader.batch_sampler
    return len(sampler.data_source), sampler._num_samples, batches.batch_size, batches.drop_last


def _free_bytes() -> int:
    shared = read_shared_memory()
    return 0 if shared is None else shared.free_bytes


def draws_between(before: Any, after: Any) -> int | None:
    """How many seeds were drawn from one state of a generator to another; None where it was something else."""
    draws = torch.Generator()
    draws.set_state(before)
    for count in range(_MOST_DRAWS + 1):
        if torch.equal(draws.get_state(), after):
            return count
        draw_seed(draws)
    return None
