"""A batch size, run: whole steps on the real model, their peak memory and their pace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from fulltilt.errors import FulltiltError, InputError, first_line
from fulltilt.feed.structure import samples_in
from fulltilt.nested import map_tensors
from fulltilt.train.ranks.ranks import Ranks
from fulltilt.train.step.engine import Engine, is_out_of_memory
from fulltilt.train.step.roles import split
from fulltilt.tune.memory import Gauge
from fulltilt.tune.policy import Trial

MakeBatch = Callable[[int], Any]

_TIMED_SECONDS = 0.3
_LEAST_STEPS, _MOST_STEPS = 5, 300
_OUT_OF_MEMORY = "out of memory"


class Bench:
    """Runs sizes. Ranks run them each alone, and hear the worst of all."""

    def __init__(
        self,
        engine: Engine,
        make_batch: MakeBatch,
        gauge: Gauge,
        *,
        target: Any,
        memory_bytes: int | None,
        asked_from: int,
        tick: Callable[[], None],
    ) -> None:
        """
        Args:
            memory_bytes: what may be used, where that is less than there is.
            asked_from: sizes below are run to know their memory, and the model may refuse them, such as one sample.
        """
        self._engine, self._make_batch, self._gauge, self._target = engine, make_batch, gauge, target
        self._memory_bytes, self._asked_from, self._tick = memory_bytes, asked_from, tick
        self.ranks = Ranks(engine.device)

    def held_bytes(self) -> int:
        """The least of all ranks: what a first trial adds is then rather too much."""
        return int(-self.ranks.largest(-float(self._gauge.held_bytes())))

    def run(self, size: int) -> Trial:
        self._clean()
        room = self._room()
        error: Exception | None = None
        problem: str | None = None
        measured = (math.inf, math.inf)
        try:
            measured = self._measured(size)
        except Exception as caught:
            if _ran_out(caught):
                problem = _OUT_OF_MEMORY
            elif size < self._asked_from:
                problem = first_line(caught)
            elif self.ranks.several:
                error = caught  # raised when the others, who wait for this trial, know
            else:
                raise
        # Here and not where it was caught: an exception holds the tensors that filled the memory.
        self._clean()
        return self._agreed(size, min(room, self._room()), measured, problem, error)

    def _agreed(
        self, size: int, room: int, measured: tuple[float, float], problem: str | None, error: Exception | None
    ) -> Trial:
        """All ranks' trial: the least room, the largest peak, the slowest step."""
        ranks = self.ranks
        if not ranks.all_agree(error is None):
            raise error or FulltiltError(f"batch size {size} failed on another rank; its message says why")
        room = int(-ranks.largest(-float(room)))
        if not ranks.all_agree(problem is None):
            return Trial(size=size, room_bytes=room, problem=problem or f"{_OUT_OF_MEMORY} on another rank")
        seconds, memory = (ranks.largest(value) for value in measured)
        return Trial(size=size, room_bytes=room, memory_bytes=int(memory), step_seconds=seconds)

    def _room(self) -> int:
        room = self._gauge.room_bytes()
        return room if self._memory_bytes is None else min(room, self._memory_bytes)

    def _clean(self) -> None:
        for parameter in self._engine.parameters:
            parameter.grad = None
        self._gauge.release()

    def _measured(self, size: int) -> tuple[float, float]:
        """Seconds of a step, and the peak."""
        inputs, target = self._batch(size)
        # Whoever feeds a step has the next batch on the device before it is done with this one.
        ahead = map_tensors(torch.clone, (inputs, target))
        # Not like the others: it makes the optimizer's state, and convolutions may try algorithms in it.
        self._engine.whole(inputs, target)
        self._gauge.begin()
        once = self._times(inputs, target, 1)[0]
        count = min(_MOST_STEPS, max(_LEAST_STEPS, math.ceil(_TIMED_SECONDS / max(once, 1e-9))))
        if size < self._asked_from:  # tried for its memory alone
            count = 1
        seconds = median(self._times(inputs, target, count))
        peak = self._gauge.peak_bytes()
        del ahead
        return seconds, float(peak)

    def _batch(self, size: int) -> tuple[tuple[Any, ...], Any]:
        batch = self._make_batch(size)
        if not isinstance(batch, tuple | list):
            raise InputError(f"make_batch({size}) returned {type(batch).__name__}; expected a tuple (*inputs, target)")
        inputs, target = split(tuple(batch), self._target)
        for name, part in (("inputs", inputs[0]), ("the target", target)):
            found = samples_in(part)
            if found != size and not (found == 0 and part is not inputs[0]):
                raise InputError(
                    f"make_batch({size}) returned {found} samples ({name}); its argument is how many are wanted"
                )
        place = self._engine.place
        return tuple(place(part) for part in inputs), place(target)

    def _times(self, inputs: tuple[Any, ...], target: Any, count: int) -> list[float]:
        """Seconds of each of `count` steps, from one to the next."""
        if self._engine.device.type != "cuda":
            marks = [time.perf_counter()]
            for _ in range(count):
                self._engine.whole(inputs, target)
                marks.append(time.perf_counter())
                self._tick()
            return [after - before for before, after in pairwise(marks)]
        stream = torch.cuda.current_stream(self._engine.device)
        torch.cuda.synchronize(self._engine.device)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
        events[0].record(stream)
        for event in events[1:]:
            self._engine.whole(inputs, target)
            event.record(stream)
        torch.cuda.synchronize(self._engine.device)
        self._tick()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def _ran_out(error: BaseException | None) -> bool:
    """Whether memory ran out; also as the cause of another error."""
    if error is None:
        return False
    return isinstance(error, MemoryError) or is_out_of_memory(error) or _ran_out(error.__cause__)
