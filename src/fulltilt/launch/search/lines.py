"""What a search says as it goes: figures into lines."""

from __future__ import annotations

import math

from fulltilt.diagnose.finding import Diagnosis, Trial
from fulltilt.errors import cause
from fulltilt.launch.search.budget import TooShort
from fulltilt.launch.search.rate import Rate, waited
from fulltilt.measure.observation import Observation
from fulltilt.words import amount

_WAITS = 0.05
"""Share of the steps' time."""
_DRIFT = 0.15
"""Two measurements of the script as it is that are further apart are both told."""


def unit_of(seen: Observation) -> str:
    """Of rates: without a loader there are no samples to count."""
    return "steps/s" if seen.samples_per_second is None else "samples/s"


def limits(diagnosis: Diagnosis, baseline: Rate, unit: str) -> str:
    found = [f"as it is {amount(baseline.value)} {unit}"]
    found += [] if diagnosis.limits.step is None else [f"its step's limit {amount(diagnosis.limits.step)}"]
    found += [] if diagnosis.limits.loader is None else [f"its loader alone {amount(diagnosis.limits.loader)}"]
    return ", ".join(found)


def tried(trial: Trial, unit: str) -> str:
    rate = "" if trial.samples_per_second is None else f" {amount(trial.samples_per_second)} {unit},"
    return f"tried {trial.title}:{rate} {trial.reason}"


def drift(first: Rate, again: Rate, unit: str) -> str | None:
    """Figures that don't agree are explained, or the summary's would seem wrong."""
    if abs(math.log(again.value / first.value)) <= math.log(1.0 + _DRIFT):
        return None
    return (
        f"as it is, beside the trials: {amount(again.value)} {unit}, where it was {amount(first.value)} at "
        "first: others use this machine, too, or the script's own pace changes"
    )


def too_short(short: TooShort, *, seconds: float, watched: float) -> str:
    """Why none of `seconds` were left for a trial."""
    return (
        f"{seconds:g} s are too short for one trial: watching took {watched:.0f} s, a trial takes "
        f"{short.trial_seconds:.0f} s here, comparing losses {short.verify_seconds:.0f} s "
        f"(--max-seconds {short.would_do:g} would do)"
    )


def left_alone(seen: Observation) -> str | None:
    """Why workers are not tried although the loop waits for its loader, where no finding tells it."""
    loader, (waits, total) = seen.train_loader, waited(seen)
    if loader is None or loader.remembers is None or not loader.keeps_workers or waits <= _WAITS * total:
        return None
    return (
        f"the number of workers is left alone: {loader.remembers} grows with the samples that are made, and each "
        "worker would have one of its own"
    )


def last_words(seen: Observation) -> str:
    """The script's own last line; where it had none, the status that it left with."""
    told = [note.removeprefix("its output ended with: ") for note in seen.notes if note.startswith("its output ended")]
    return told[-1].strip()[:120] if told else status_of(seen)


def status_of(seen: Observation) -> str:
    return cause(seen.exit_status or 0)
