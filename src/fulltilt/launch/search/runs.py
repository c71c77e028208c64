"""Runs of the script on the way to a plan: a trial, its step's limit, its loader alone; none takes the others' time.

What is learnt of the script from its first run (how long it takes to start, a step's length, the status that it leaves
with) says how long each of the next ones may take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from fulltilt.launch.command import Command
from fulltilt.launch.search import lines, redrawn
from fulltilt.launch.search.budget import COMPILE_SECONDS, FIRST_COMPILE_SECONDS, GRACE, TRIAL_SECONDS, VERIFY_SECONDS
from fulltilt.launch.search.rate import Rate, rate_of
from fulltilt.launch.search.search import LATE, key_of
from fulltilt.launch.search.verify import LEAST_STEPS
from fulltilt.launch.settings import Settings, feeds_only
from fulltilt.measure.observation import Observation

Observe = Callable[..., tuple[Observation, ...]]
Say = Callable[[str], None]

MOST_SHARE = 0.2
"""Of a time so short that watching the script as it is would take most of it: a limit's steps take no more, either."""
_LIMIT_SECONDS = 8.0
_TRIAL_STEPS = (45, 1500)
_AS_LONG = 1.5
"""How many times as long as it was thought to take, the script may take to its end."""


@dataclass(slots=True, kw_only=True)
class Runs:
    """Of one command."""

    command: Command
    observe: Observe
    seconds: float
    """For all of them together, and what else there is to do."""
    say: Say = lambda _: None
    clock: Callable[[], float] = time.monotonic
    until: float = math.inf
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    """From the command's start to its first step."""
    own_status: int | None = None
    """What the script leaves with by itself, where it came to its end."""
    seeks_status: bool = True
    """Whether it leaves with one was not looked for yet."""
    late: bool = False
    """It was, and the script took longer to its end than there was time."""
    trial_seconds: float = TRIAL_SECONDS
    """Of steps; starting the script comes on top."""
    kept_back: float = 0.0
    """Seconds for the proof, which no trial may take."""
    undrawn: tuple[str, ...] | None = None
    """Loaders that alone are given another number of workers; None binds it to none."""
    limits: dict[str, float] = field(default_factory=dict)
    """The step's, by the settings that were tried."""

    @property
    def left(self) -> float:
        return self.until - self.clock()

    @property
    def limit_seconds(self) -> float:
        return min(_LIMIT_SECONDS, self.seconds * MOST_SHARE)

    def learn(self, seen: Observation, *, took: float) -> None:
        """From the first one, of the script as it is, which took so long in all."""
        self.own_status = seen.exit_status if seen.ended == "script" else None
        self.seeks_status = seen.ended != "script"
        if not seen.steps:
            return
        self.step_seconds = median(step.seconds for step in seen.steps)
        self.start_seconds = max(0.5, took - _trained(seen) - seen.behind_seconds)

    def limit(self, settings: Mapping[str, Any]) -> Observation:
        """The step's, with batches that are on the device already."""
        return self.run(
            mode="replay", settings=settings, max_steps=100, max_seconds=self.limit_seconds, at_most=self.left
        )

    def alone(self) -> Observation:
        """What its loader gives to nobody."""
        return self.run(mode="loader", max_seconds=self.limit_seconds, at_most=self.left)

    def run(self, *, at_most: float = math.inf, **options: Any) -> Observation:
        """Observe; `at_most` are seconds of the whole run, which has others of its own where it hangs."""
        options["settings"] = redrawn.bound(options.get("settings") or {}, self.undrawn)
        if options["settings"].get("compile"):
            # Of code that drops as the seed says, the compiler has kept nothing.
            options["max_seconds"] += FIRST_COMPILE_SECONDS if options.get("tie_dropout") else COMPILE_SECONDS
        late = 30.0 + 3 * self.start_seconds + 2 * options["max_seconds"]
        deadline = min(late, at_most)
        return self.observe(self.command, deadline_seconds=deadline, own_status=self.own_status, **options)[0]

    def proof(self, *, max_steps: int, **options: Any) -> Observation:
        """Losses, of so many steps; it may be late by as much as a budget allows it to."""
        lasts = max(3 * VERIFY_SECONDS, _AS_LONG * max_steps * self.step_seconds)
        needed = self.start_seconds + max_steps * self.step_seconds
        at_most = max(self.left + GRACE * self.seconds, needed)
        return self.run(max_steps=max_steps, max_seconds=lasts, at_most=at_most, **options)

    def trial(self, settings: Settings) -> Rate | str:
        """The rate with these settings, or why there is none."""
        least, most = _TRIAL_STEPS
        workers = int(settings.get("loader.num_workers", 0))
        steps = min(max(round(2 * self.trial_seconds / self.step_seconds), least), most)
        # One that takes longer than it was thought to must not take the others' time.
        seen = self.run(
            settings=settings, max_steps=steps + 2 * workers, max_seconds=self.trial_seconds,
            at_most=max(self.left - self.kept_back, self.start_seconds + self.trial_seconds),
            then=() if feeds_only(settings) else ("replay",),
        )  # fmt: skip
        if seen.replayed is not None and (limit := without_starts(seen.replayed)) is not None:
            self.limits[key_of(settings)] = limit
        if seen.ended in ("failed", "killed"):
            own = self._ends_so_by_itself(seen)
            if not own:
                return LATE if own is None else f"failed ({lines.last_words(seen)})"
        return rate_of(seen) or (LATE if seen.ended == "time" and not seen.steps else "too few steps")

    def _ends_so_by_itself(self, seen: Observation) -> bool | None:
        """Whether what looks like a failed trial is the script's own exit status: a trial that is faster comes to the
        script's end where the script as it is was not watched so far. It is looked for once; None where that took
        longer than there was time."""
        status = seen.exit_status or 0
        if seen.raised or status <= 0 or len(seen.steps) < LEAST_STEPS:
            return False
        if self.seeks_status:
            self.seeks_status = False
            needed = _AS_LONG * (self.start_seconds + _steps(seen) * self.step_seconds)
            has = self.left - self.kept_back
            if needed > has:
                self.say(f"a trial ended with exit status {status}; no time is left to see whether that is its own")
                return None
            self.say(f"a trial ended with exit status {status}: looking whether the script does so by itself")
            (alone, *_) = self.observe(self.command, full=True, deadline_seconds=max(needed, has / 2))
            self.own_status = alone.exit_status if alone.ended == "script" else None
            self.late = alone.ended == "time"
        return None if self.late else status == self.own_status


def _trained(seen: Observation) -> float:
    """Seconds, with steps that were passed by, and what lies between."""
    first, last = seen.steps[0], seen.steps[-1]
    return last.started + last.seconds - first.started


def _steps(seen: Observation) -> float:
    """All that it made, about: those that were passed by have no number."""
    return max(seen.steps[-1].number + 1, _trained(seen) / fmean(step.seconds for step in seen.steps))


def without_starts(replay: Observation) -> float | None:
    """A step's rate, in what `rate_of` counts."""
    return replay.samples_per_second or replay.steps_per_second
