"""Find a plan for a script: observe it, measure its limits, diagnose, try, verify. Effects are others'; order is here.

    as is ─► limits ─► diagnosis ─► candidates ─► search ─► losses before and after ─► the limit with the plan ─► Plan

All of it within the seconds that are given. Each part leaves time for those that follow (`budget.py`); verification is
never left out: what could not be verified is not applied.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fulltilt.diagnose import diagnose
from fulltilt.diagnose.finding import Diagnosis, Level, LossCurves, Outcome, Trial
from fulltilt.launch.command import Command
from fulltilt.launch.job import FULL, NO_ROOM
from fulltilt.launch.search import lines, redrawn
from fulltilt.launch.search.budget import (
    COMPILE_SECONDS,
    FIRST_COMPILE_SECONDS,
    Script,
    TooShort,
    is_enough,
    shared_out,
    too_short,
    verify_steps,
)
from fulltilt.launch.search.candidates import Candidate, candidates, describe, neighbours, redraws, wants_workers
from fulltilt.launch.search.edits import only_by_hand
from fulltilt.launch.search.judge import Judge, has_room
from fulltilt.launch.search.plan import Key, Plan, hash_of
from fulltilt.launch.search.rate import Rate, rate_of
from fulltilt.launch.search.runs import MOST_SHARE, Observe, Runs, Say, without_starts
from fulltilt.launch.search.search import LEAST_GAIN, Found, as_trial, key_of, search
from fulltilt.launch.search.verify import LEAST_STEPS, fallbacks
from fulltilt.launch.settings import SETTINGS, Settings, feeds_only
from fulltilt.measure.observation import Observation

_AS_IS_SHARE = 0.12
_AS_IS_SECONDS = (6.0, 120.0)
"""Steps are watched until they are even, most often for less; long ones take that long."""
_AS_IS_UNTIL = 0.75
"""Of the time: limits that are measured behind the steps are broken off then. Steps that began within half of it are
over by that."""
_LIMIT_NOISE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """All that was learnt on the way to a plan."""

    plan: Plan
    diagnosis: Diagnosis
    trials: tuple[Trial, ...] = ()
    after: Outcome | None = None
    """None where the script is left as it is."""
    losses: LossCurves | None = None
    seconds: float = 0.0
    complete: bool = True
    """The time sufficed for all that was to be tried."""

    @property
    def settled(self) -> bool:
        """The plan is worth keeping: its settings pay, or nothing does, as far as all was tried and figures agree."""
        return bool(self.plan.settings) or (self.complete and not self.diagnosis.unsettled)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTuned:
    """The script can't be tuned; `reason` is a clause. It is run as it is."""

    reason: str
    diagnosis: Diagnosis | None = None
    """Where it came to one."""


@dataclass(slots=True, kw_only=True)
class Tuner:
    command: Command
    key: Key
    level: Level
    cores: int
    seconds: float
    observe: Observe
    say: Say = lambda _: None
    clock: Callable[[], float] = time.monotonic
    runs: Runs = field(init=False)
    room: bool = False
    """Several of it may run at the same time."""
    judge: Judge = field(init=False)
    notes: list[str] = field(default_factory=list)
    """What the plan says besides."""
    unit: str = "samples/s"
    """Of rates, in what is said."""
    unlimited: bool = False
    """No time was left to measure the step's limit, and so none for trials."""

    def tune(self) -> Tuned | NotTuned:
        began = self.clock()
        self.runs = Runs(
            command=self.command, observe=self.observe, seconds=self.seconds, say=self.say, clock=self.clock,
            until=began + self.seconds,
        )  # fmt: skip
        seen = self._as_is()
        if isinstance(seen, NotTuned):
            return seen
        diagnosis = self._diagnosed(seen)
        baseline = rate_of(seen[0])
        if baseline is None:
            return NotTuned(reason="too few steps could be watched")
        self.unit = lines.unit_of(seen[0])
        self.say(lines.limits(diagnosis, baseline, self.unit))
        self.say(diagnosis.verdict)
        self.runs.undrawn = redrawn.undrawn(seen[0]) if self.level == "exact" else None
        chosen = candidates(diagnosis.findings, seen[0], cores=self.cores, level=self.level)
        fixed = redraws(seen[0], self.level)
        if fixed and wants_workers(diagnosis.findings, seen[0], cores=self.cores):
            self.notes.append(redrawn.left_out(seen[0]))
            self.say(self.notes[-1])
        if (kept := lines.left_alone(seen[0])) is not None:
            self.notes.append(kept)
            self.say(kept)
        if not (chosen or self.unlimited):
            self.say("nothing that can be set from outside is predicted to pay")
            for line in only_by_hand(diagnosis.findings)[:1]:
                self.say(f"an edit of the script is: {line}")
            plan = self._plan({}, baseline, diagnosis, verified="nothing to verify: the script is left as it is")
            return Tuned(plan=plan, diagnosis=diagnosis, seconds=self.clock() - began)
        script = self._script()
        left = self.runs.left
        # Without the step's limit the findings that need it are missing: what would pay is not known.
        share = too_short if self.unlimited else shared_out
        budget = share(chosen, script, left=left, seconds=self.seconds)
        if isinstance(budget, TooShort):
            return self._no_time(budget, left, diagnosis)
        if len(budget.candidates) < len(chosen):
            self.say(f"{left:.0f} s are left for trials: those that are predicted to give most are tried")
        self.runs.trial_seconds, self.runs.kept_back = budget.trial_seconds, budget.verify_seconds
        self.judge = self._judge(budget.verify_steps)
        found = self._search(
            budget.candidates,
            baseline,
            neighbours=lambda settings, waits: neighbours(
                settings,
                cores=self.cores,
                waits=waits,
                workers=None if fixed else _workers(seen[0]),
                samples=_samples(seen[0]),
                world=seen[0].world,
            ),
        )
        if not found.trials:
            short = too_short(chosen, script, left=left, seconds=self.seconds)
            return self._no_time(short, left, diagnosis)
        if (drifted := lines.drift(baseline, found.baseline, self.unit)) is not None:
            self.say(drifted)
        return self._verified(found, diagnosis, began)

    # the script as it is

    def _as_is(self) -> tuple[Observation, ...] | NotTuned:
        began = self.clock()
        least, most = _AS_IS_SECONDS
        span = min(max(self.seconds * _AS_IS_SHARE, least), most, self.seconds * MOST_SHARE)
        ranks = self.observe(
            self.command, max_seconds=span, first_step_seconds=self.seconds / 2,
            deadline_seconds=self.seconds * _AS_IS_UNTIL, then=("replay", "loader"),
        )  # fmt: skip
        seen = ranks[0]
        if seen.ended in ("failed", "killed"):
            return NotTuned(reason=_why_failed(seen, Path(self.command.target).name))
        self.runs.learn(seen, took=self.clock() - began)
        more = f"--max-seconds {2 * self.seconds:g} gives it more"
        if seen.ended == "time" and not seen.steps:
            late = self.seconds * _AS_IS_UNTIL
            if self.clock() - began >= late:
                return NotTuned(reason=f"its first steps took longer than {late:g} of {self.seconds:g} s ({more})")
            return NotTuned(reason=f"it took no step within {self.seconds / 2:g} s, half of the time ({more})")
        if len(seen.steps) < LEAST_STEPS:
            few = f"{len(seen.steps) or 'no'} training steps could be watched"
            return NotTuned(reason=f"{few} in {span:g} s ({more})" if seen.ended == "time" else few)
        self.room = len(ranks) == 1 and has_room(seen, self.cores)
        self.judge = self._judge(verify_steps(self.runs.step_seconds))
        return ranks

    def _judge(self, steps: int) -> Judge:
        return Judge(functools.partial(self.runs.proof, max_steps=steps), steps=steps, side_by_side=self.room)

    def _script(self) -> Script:
        return Script(
            start_seconds=self.runs.start_seconds,
            step_seconds=self.runs.step_seconds,
            runs=lambda exact: self.judge.runs(exact=exact),
        )

    def _diagnosed(self, ranks: tuple[Observation, ...]) -> Diagnosis:
        seen = ranks[0]
        replay = loader = None
        if seen.can_replay:
            needed, left = self.runs.start_seconds + self.runs.limit_seconds, self.runs.left
            replay = seen.replayed or (self.runs.limit({}) if needed <= left else None)
            self.unlimited = replay is None
            # A trial says more than what the loader gives alone: that is looked for where both are to be had, or none.
            left = self.runs.left
            tries, tries_after = (
                is_enough(self._script(), left=some, seconds=self.seconds) for some in (left, left - needed)
            )
            has_time = needed <= left and tries == tries_after
            loader = seen.alone or (self.runs.alone() if has_time else None)
        return diagnose(seen, replay=replay, loader=loader, ranks=ranks if len(ranks) > 1 else ())

    def _search(self, some: Sequence[Candidate], baseline: Rate, **options: Any) -> Found:
        return search(
            some,
            baseline,
            measure=self.runs.trial,
            clock=self.clock,
            seconds=self.runs.left - self.runs.kept_back,
            trial_seconds=self.runs.start_seconds + self.runs.trial_seconds,
            compile_seconds=FIRST_COMPILE_SECONDS,
            say=self._tried,
            **options,
        )

    # losses

    def _judging(self, runs: int) -> float:
        """Seconds that so many runs take, one after the other."""
        return runs * (self.runs.start_seconds + self.judge.steps * self.runs.step_seconds)

    def _verified(self, found: Found, diagnosis: Diagnosis, began: float) -> Tuned:
        trials, settings = list(found.trials), found.settings
        if not settings:
            nothing = "nothing pays" if found.complete else "the time was up before anything was sure to pay"
            self.say(f"{nothing}: the script is left as it is")
            plan = self._plan({}, found.baseline, diagnosis, verified="nothing to verify: the script is left as it is")
            return Tuned(
                plan=plan, diagnosis=diagnosis, trials=tuple(trials), seconds=self.clock() - began,
                complete=found.complete,
            )  # fmt: skip
        self.say("comparing the losses of the first steps, before and after")
        judged = self.judge(settings)
        lesser = fallbacks(settings, {name: kind.level for name, kind in SETTINGS.items()})
        while not judged.holds:
            self.say(f"rolled back: {judged.reason}")
            trials.append(_turned_down(settings, found.rate, f"rolled back: {judged.reason}"))
            found = self._next_best(lesser, found)
            trials += found.trials
            settings = found.settings
            if not settings:
                break
            judged = self.judge(settings)
        if not settings:
            self.say("the script is left as it is")
            plan = self._plan({}, found.baseline, diagnosis, verified=f"rolled back: {judged.reason}")
            return Tuned(
                plan=plan, diagnosis=diagnosis, trials=tuple(trials), losses=judged.curves,
                seconds=self.clock() - began, complete=found.complete and not self.judge.late,
            )  # fmt: skip
        rate = found.rate
        limit = self._limit_with(settings, diagnosis, rate.value)
        settings = redrawn.bound(settings, self.runs.undrawn)
        verified = redrawn.told(judged.reason, settings, diagnosis.observation, draws=judged.draws)
        self.say(f"verified: {verified}")
        plan = self._plan(settings, found.baseline, diagnosis, verified=verified, after=rate.value, limit=limit)
        outcome = Outcome(
            samples_per_second=rate.value, before=plan.before, settings=settings, limit=limit, verified=verified
        )
        return Tuned(
            plan=plan, diagnosis=diagnosis, trials=tuple(trials), after=outcome, losses=judged.curves,
            seconds=self.clock() - began,
        )  # fmt: skip

    def _next_best(self, lesser: list[dict[str, Any]], found: Found) -> Found:
        """Of settings that are left to go back to, the first that pays beside the script as it is, in the time."""
        # At most the settings' run, the nudged one, and the script as it is, which has one for each kind of dropout.
        self.runs.kept_back = min(self.runs.kept_back, self._judging(3))
        complete, trials = found.complete, list[Trial]()
        while lesser and lesser[0]:
            settings = lesser.pop(0)
            again = self._search(
                [Candidate(title=describe(settings), settings=settings, gain=LEAST_GAIN)], found.baseline
            )
            complete, trials = complete and again.complete, [*trials, *again.trials]
            if again.settings:
                return replace(again, trials=tuple(trials))
        return replace(found, settings={}, trials=tuple(trials), complete=complete)

    def _limit_with(self, settings: Mapping[str, Any], diagnosis: Diagnosis, reached: float) -> float | None:
        """What the step could do under the plan: its old limit where only feeding has changed, if that can be true.

        A limit below what was reached since is of a machine that was busier then.
        """
        known = diagnosis.limits.step
        if known is None or (feeds_only(settings) and known >= reached):
            return known
        tried = self.runs.limits.get(key_of(settings), 0.0)
        if tried >= reached * (1 - _LIMIT_NOISE):
            return tried
        needed = self.runs.start_seconds + (COMPILE_SECONDS if "compile" in settings else 2.0)
        if self.runs.left < needed:
            return None
        limit = without_starts(self.runs.limit(settings))
        return None if limit is None or limit < reached * (1 - _LIMIT_NOISE) else limit

    # what comes of it

    def _tried(self, trial: Trial) -> None:
        self.say(lines.tried(trial, self.unit))

    def _no_time(self, short: TooShort, left: float, diagnosis: Diagnosis) -> NotTuned:
        reason = lines.too_short(short, seconds=self.seconds, watched=self.seconds - left)
        return NotTuned(reason=reason, diagnosis=diagnosis)

    def _plan(
        self,
        settings: Mapping[str, Any],
        baseline: Rate,
        diagnosis: Diagnosis,
        *,
        verified: str,
        after: float | None = None,
        limit: float | None = None,
    ) -> Plan:
        return Plan(
            key=self.key,
            level=self.level,
            settings=settings,
            before=_told(baseline.value),
            after=_told(after if settings else baseline.value),
            limit=_told(limit if settings else diagnosis.limits.step),
            unit=self.unit,
            verified=verified,
            draws_anew=redrawn.draws_anew(settings, diagnosis.observation),
            notes=tuple(self.notes),
            modules={path: hash_of(path) for path in diagnosis.observation.modules},
        )


def _why_failed(seen: Observation, name: str) -> str:
    for note in seen.notes:
        if note.startswith(FULL):
            return f"it can't be tried ({note})"
        if NO_ROOM in note:
            return f"it can't be tried ({note[note.index(NO_ROOM) :]})"
    how, last = lines.status_of(seen), lines.last_words(seen)
    told = how if last == how else f"{how}: {last}"
    return f"tried without standard input, {name} ended with an error ({told})"


def _told(figure: float | None) -> float | None:
    """As a plan keeps it: no two measurements agree in more digits."""
    return None if figure is None else float(f"{figure:.5g}")


def _turned_down(settings: Settings, rate: Rate | None, reason: str) -> Trial:
    return as_trial(describe(settings), settings, rate, kept=False, reason=reason)


def _samples(seen: Observation) -> int | None:
    loader = seen.train_loader
    return None if loader is None else loader.samples


def _workers(seen: Observation) -> int | None:
    """More of them can be tried for samples that don't depend on their number."""
    loader = seen.train_loader
    return None if loader is None or loader.keeps_workers else loader.num_workers
