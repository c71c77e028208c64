"""Whether several threads get more of a piece of work done than one: by turns, for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from threading import Barrier

TURN_SECONDS = 0.05
"""How long it is one thread's turn, or that of several."""
LOOK_SECONDS, MOST_SECONDS = 0.3, 1.5
"""How long they take turns: until the two best of either kind agree, so that neither best was disturbed."""
AGREE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    calls: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Turns of one thread and of several, side by side."""

    alone: tuple[Turn, ...]
    together: tuple[Turn, ...]

    @property
    def seconds_per_call(self) -> float:
        """Of one thread."""
        return 1 / median(turn.rate for turn in self.alone)

    @property
    def speedup(self) -> float:
        """The rate of several as a multiple of one's, both at their best: who takes a core away makes a turn slower,
        never faster.
        """
        return max(turn.rate for turn in self.together) / max(turn.rate for turn in self.alone)


def compare_threads(call: Callable[[], object], threads: int) -> Compared:
    """Repeat a call, which is warmed up, by so many threads and by one."""
    alone: list[Turn] = []
    together: list[Turn] = []
    spent = 0.0
    while spent < LOOK_SECONDS or (spent < MOST_SECONDS and not (_agree(alone) and _agree(together))):
        together.append(take_turn(call, threads))
        alone.append(take_turn(call, 1))
        spent = sum(turn.seconds for turn in alone + together)
    return Compared(alone=tuple(alone), together=tuple(together))


def _agree(turns: Sequence[Turn]) -> bool:
    """Whether the two best do; one alone is of a call so long that little can disturb it."""
    rates = sorted(turn.rate for turn in turns)
    return len(rates) == 1 or rates[-2] >= AGREE * rates[-1]


def take_turn(call: Callable[[], object], threads: int) -> Turn:
    """At least one call by each thread. They begin together, and the time until the last one is done counts."""
    began = 0.0

    def begin() -> None:
        nonlocal began
        began = time.perf_counter()

    all_there = Barrier(threads, begin)

    def work() -> int:
        all_there.wait()
        done = 0
        while not done or time.perf_counter() - began < TURN_SECONDS:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        calls = sum(future.result() for future in [pool.submit(work) for _ in range(threads)])
    return Turn(calls=calls, seconds=time.perf_counter() - began)
