"""What the time that is left is spent on: how much is tried, how long each trial is, how it is proven. Pure.

A trial is of no use without the two that follow it: the script as it is once more, right beside it, because a machine
that is shared was another one a minute ago; and the comparison of losses, because what is not proven is not applied.

    all         every candidate, and trials as long as they are best
    few         every candidate that needs no compiler, shorter trials, few losses
    largest     the candidate with the largest forecast alone
    exact       the exact one with the largest forecast: its proof needs one run less
    nothing     no time for one trial; which time would do is said

Shorter trials are noisier: they are made where the forecast is one that they can tell from noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fulltilt.launch.search.candidates import Candidate, level_of

TRIAL_SECONDS = 6.0
"""Of steps; starting the script comes on top."""
VERIFY_SECONDS = 6.0
VERIFY_STEPS = (12, 40)
COMPILE_SECONDS = 20.0
"""Steps after the first may compile, too: the first one is not counted."""
FIRST_COMPILE_SECONDS = 30.0
"""That first one at the least, of a model that was never compiled before; less than that again later."""
_SHORT_SECONDS = 2.0
_LEAST_STEPS = 20
"""Of a trial, however long they take: a rate's noise is had from blocks of them."""
_TOLD_APART = 0.1
"""A forecast below that is not looked for with shorter trials."""
_TRIALS = 2.2
"""Settings, and the script as it is beside them, which is begun only with time in hand."""
_AMPLE = 4
"""Trials that leave room for a second look."""
GRACE = 0.1
"""Share of the whole time by which the last proof may be late: a start is thought to take as long as the first one
did, which caches make faster later."""
_ROUND = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is known of the script by now, in seconds."""

    start_seconds: float
    """From the command's start to its first step."""
    step_seconds: float
    runs: Callable[[bool], float]
    """How many runs, one after the other, a proof takes the time of; told whether all is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What is to be done."""

    candidates: tuple[Candidate, ...]
    trial_seconds: float
    """Of steps, in each trial."""
    verify_steps: int
    """Losses that are compared."""
    verify_seconds: float
    """Kept back for the proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooShort:
    """Nothing can be tried in the time."""

    trial_seconds: float
    """What a trial takes here, all in all."""
    verify_seconds: float
    would_do: float
    """Seconds to ask for instead."""


def shared_out(candidates: Sequence[Candidate], script: Script, *, left: float, seconds: float) -> Budget | TooShort:
    """The most that can be done in what is `left` of the `seconds` that were given."""
    full = Budget(
        candidates=tuple(candidates),
        trial_seconds=_long(script),
        verify_steps=verify_steps(script.step_seconds),
        verify_seconds=_proof(candidates, script, verify_steps(script.step_seconds)),
    )
    if left >= _trials(full, script) + full.verify_seconds:
        return full
    late = left + GRACE * seconds
    for some in _fewer(candidates):
        proof = _proof(some, script, VERIFY_STEPS[0])
        each = (late - proof) / _TRIALS - script.start_seconds  # at the most
        length = min(_long(script), max(_short(script), (left - proof) / _TRIALS - script.start_seconds))
        tells = length == _long(script) or max(one.gain for one in some) >= _TOLD_APART
        if each >= length and tells:
            # What the proof may be late by is no time for trials.
            kept = max(0.0, min(proof, left - _TRIALS * (script.start_seconds + length)))
            return Budget(candidates=some, trial_seconds=length, verify_steps=VERIFY_STEPS[0], verify_seconds=kept)
    return too_short(candidates, script, left=left, seconds=seconds)


def is_enough(script: Script, *, left: float, seconds: float) -> bool:
    """For the shortest trial, the script beside it and the proof, of what is `left` of the `seconds`."""
    proof = script.runs(True) * (script.start_seconds + VERIFY_STEPS[0] * script.step_seconds)
    return left + GRACE * seconds >= _TRIALS * (script.start_seconds + _short(script)) + proof


def too_short(candidates: Sequence[Candidate], script: Script, *, left: float, seconds: float) -> TooShort:
    """What to say of it."""
    trial = script.start_seconds + _long(script)
    trial += FIRST_COMPILE_SECONDS if candidates and all(one.compiles for one in candidates) else 0.0
    proof = _proof(candidates, script, verify_steps(script.step_seconds))
    needed = seconds - left + _AMPLE * trial + proof
    return TooShort(
        trial_seconds=trial,
        verify_seconds=proof,
        would_do=_ROUND * math.ceil(max(needed, seconds + 1.0) / _ROUND),
    )


def verify_steps(step_seconds: float) -> int:
    least, most = VERIFY_STEPS
    return min(max(round(VERIFY_SECONDS / step_seconds), least), most)


def _fewer(candidates: Sequence[Candidate]) -> list[tuple[Candidate, ...]]:
    """What to do without, step by step."""
    quick = [one for one in candidates if not one.compiles]
    exact = [one for one in quick if level_of(one.settings) == "exact"]
    groups = [tuple(quick), *(tuple(_largest(some)) for some in (quick, exact))]
    return [some for some in groups if some]


def _largest(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda one: one.gain, reverse=True)[:1]


def _long(script: Script) -> float:
    return max(TRIAL_SECONDS, _LEAST_STEPS * script.step_seconds)


def _short(script: Script) -> float:
    return max(_SHORT_SECONDS, _LEAST_STEPS * script.step_seconds)


def _trials(budget: Budget, script: Script) -> float:
    """The fewest there have to be."""
    compiling = FIRST_COMPILE_SECONDS if all(one.compiles for one in budget.candidates) else 0.0
    return _TRIALS * (script.start_seconds + budget.trial_seconds) + compiling


def _proof(candidates: Sequence[Candidate], script: Script, steps: int) -> float:
    """Of all its runs; in those after, the model is compiled as if for the first time: with dropout that is tied, what
    trials have left in the compiler's cache does not fit."""
    exact = all(level_of(one.settings) == "exact" for one in candidates)
    each = script.start_seconds + steps * script.step_seconds
    compiling = FIRST_COMPILE_SECONDS if any(one.compiles for one in candidates) else 0.0
    return script.runs(exact) * each + compiling
