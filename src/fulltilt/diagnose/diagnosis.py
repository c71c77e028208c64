"""Observations and limits in, a diagnosis out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fulltilt import words
from fulltilt.measure.observation import Observation

from .figures import Figures
from .finding import Diagnosis, Finding, Limits
from .findings import FAMILIES, slow_rank
from .remaining import in_the_way
from .thresholds import CAUSES, THRESHOLDS

BUSIER = "the machine was busier while the script was watched than while its limit was measured"
_SEVERAL = 2.0
"""Epochs, from which on those that find a cache full are among what was watched."""
_LESS_BUSY = "the machine was less busy when it was measured"


def read_source(file: str) -> str | None:
    """A file of the user's; None if it can't be read as text."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def diagnose(
    observation: Observation,
    *,
    replay: Observation | None = None,
    loader: Observation | None = None,
    ranks: Sequence[Observation] = (),
    read_source: Callable[[str], str | None] = read_source,
) -> Diagnosis:
    """Why the script is as fast as it is: `observation` of it as it is, `replay` and `loader` for its limits."""
    limits = Limits(step=_step_limit(observation, replay), loader=_loader_limit(loader))
    local = max(len(ranks), 1)  # those of other machines are not watched
    figures = Figures(observation=observation, limits=limits, read_source=read_source, local_ranks=local)
    found: list[Finding] = []
    if figures.steps >= THRESHOLDS.least_steps:
        for family in FAMILIES:
            found += family(figures)
        found += slow_rank(ranks)
    findings = rank(_unpredicted(found) if _fills_a_cache(figures) else found)
    unsettled = (_further_off(figures) or 0.0) >= THRESHOLDS.unsettled
    fed = figures.headroom is not None and figures.headroom < THRESHOLDS.no_headroom
    return Diagnosis(
        observation=observation,
        ranks=tuple(ranks),
        limits=limits,
        headroom=None if fed and unsettled else figures.headroom,
        findings=findings,
        verdict=_verdict(figures, findings),
        notes=tuple(_notes(figures, replay)),
        unsettled=unsettled,
    )


def _fills_a_cache(figures: Figures) -> bool:
    """What was watched is the epoch in which a data set keeps its samples: later ones find them there."""
    loader = figures.train_loader
    if loader is None or loader.remembers is None or loader.num_workers:
        return False
    return bool(figures.wait) and figures.steps <= _SEVERAL * figures.epoch_steps


def _unpredicted(findings: Sequence[Finding]) -> list[Finding]:
    return [replace(one, gain=None) if one.about == "feeding" else one for one in findings]


def rank(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The greatest gain first, what can't be predicted last; gains that are about equal in the order of the table."""
    order = {cause: at for at, cause in enumerate(CAUSES)}
    worth = [finding for finding in findings if _worth(finding)]
    return _once(
        sorted(
            worth,
            key=lambda finding: (
                finding.gain is None,
                -round((finding.gain or 0.0) / THRESHOLDS.least_gain),
                order[finding.cause],
                -(finding.limit_gain or 0.0),
            ),
        )
    )


def _once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Of findings with one and the same fix from outside, the first."""
    known: list[object] = []
    kept = []
    for finding in findings:
        if finding.settings and finding.settings in known:
            continue
        known.append(finding.settings)
        kept.append(finding)
    return tuple(kept)


def _notes(figures: Figures, replay: Observation | None) -> Iterator[str]:
    if figures.steps < THRESHOLDS.least_steps:
        return
    around = figures.observation.surroundings
    if around is not None and (around.others_cores or 0.0) >= THRESHOLDS.others_cores * figures.cores:
        yield (
            f"others kept {around.others_cores:.1f} of {figures.cores} cores busy meanwhile; gains are predicted for a "
            "machine that you have to yourself, where more workers find cores"
        )
    if _fills_a_cache(figures) and figures.train_loader is not None:
        yield (
            f"{figures.train_loader.remembers} grows with the samples that are made: later epochs, which find them "
            "there, may wait for less than what was watched, so that no gain of feeding is predicted"
        )
    if figures.limit is None:
        if figures.train_loader is None:
            yield "the step's limit was not measured: the script has no DataLoader whose batches could be given again"
        elif figures.train_loader.elsewhere:
            yield (
                "the step's limit was not measured: another thread than the one that trains asks the DataLoader for "
                "batches, and is not watched"
            )
        elif replay is None:
            yield "the step's limit was not measured"
        else:
            yield f"the step's limit was not measured: with batches given again it made {len(replay.steps)} steps"
            yield from (f"… {note}" for note in replay.notes)
    elif (further := _further_off(figures)) is not None:
        yield (
            f"the step's limit lies {words.percent(further)} of the time further off than waiting for data and the "
            f"loader's work beside the step explain: {_LESS_BUSY}"
        )


def _further_off(figures: Figures) -> float | None:
    """Share of the time by which the limit lies beyond the headroom, where it is worth a word."""
    if figures.limit is None or figures.reach is None or not figures.step:
        return None
    further = (figures.reach - figures.limit) / figures.fed_step
    return further if further > THRESHOLDS.no_headroom else None


def _worth(finding: Finding) -> bool:
    if finding.gain is None:
        return True
    return max(finding.gain, finding.limit_gain or 0.0) >= THRESHOLDS.least_gain


def _step_limit(observation: Observation, replay: Observation | None) -> float | None:
    """In what the observation counts: samples, or else steps."""
    if replay is None or len(replay.steps) < THRESHOLDS.least_steps:
        return None
    measured = replay.steps_per_second if observation.samples_per_second is None else replay.samples_per_second
    seen = Figures(observation=observation, limits=Limits(step=None, loader=None))
    if measured is None or seen.on_gpu or not seen.per_step:
        return measured
    # On a CPU the step's own work lies before us, waits left out. A replay that took longer met a busier machine.
    own = seen.own - seen.phases.get("copy", 0.0)
    return max(measured, seen.per_step / own) if own > 0 else measured


def _loader_limit(loader: Observation | None) -> float | None:
    if loader is None:
        return None
    rates = [
        (item.role == "train", item.samples_per_second)
        for item in loader.loaders
        if item.samples_per_second is not None
    ]
    return max(rates)[1] if rates else None


def _verdict(figures: Figures, findings: Sequence[Finding]) -> str:
    if figures.steps < THRESHOLDS.least_steps:
        steps = "no training step" if not figures.steps else f"only {figures.steps} training steps"
        return f"Nothing can be said: {steps} could be watched."
    most = _most(findings)
    if figures.headroom is None or figures.limit is None or figures.reach is None:
        first = most or next(iter(findings), None)
        slow = f"{first.title}." if first is not None else "No cause was found for it to be slow."
        return f"The step's limit could not be measured. {slow}"
    others = [] if most is None else [f"{most.title}."]
    further = _further_off(figures)
    busier = [] if further is None else [f"Its limit lies {words.percent(further)} further off: {_LESS_BUSY}."]
    if figures.headroom < THRESHOLDS.no_headroom and (further or 0.0) >= THRESHOLDS.unsettled:
        told = f"{BUSIER} ({words.percent(further or 0.0)} of the time has no other explanation)"
        again = "Measure again when it is quiet."
        return " ".join([f"Whether feeding it faster gains anything can't be told: {told}.", again, *others])
    if figures.headroom < THRESHOLDS.no_headroom:
        at = words.percent(figures.limit / figures.fed_step)
        said = f"the script trains at {at} of its step's limit, and " if further is None else ""
        return " ".join([f"No headroom: {said}feeding it faster gains nothing.", *busier, *others])
    said = f"{words.percent(figures.headroom)} headroom."
    cause = next((finding for finding in findings if _explains(finding)), None)
    if cause is not None:
        return " ".join([said, f"{cause.title}.", *_in_part(cause, figures), *busier])
    told = in_the_way(figures, figures.reach, cores=figures.cores)
    unknown = f"{told[0].upper()}{told[1:]}; nothing is known that would make it less."
    return " ".join([said, unknown, *busier, *(f"Besides: {title}" for title in others)])


def _most(findings: Sequence[Finding]) -> Finding | None:
    """The first that is predicted to gain; the script's own code, whose gain nobody can tell, where that takes more."""
    gains = findings[0] if findings and (findings[0].gain or 0.0) >= THRESHOLDS.least_gain else None
    own = next((finding for finding in findings if finding.cause == "own-code"), None)
    taken = 0.0 if gains is None else gains.seconds or 0.0
    return own if own is not None and (own.seconds or 0.0) > taken else gains


def _explains(finding: Finding) -> bool:
    """Whether it keeps the script from its limit. One about the step moves the limit itself, and what lies between the
    steps is no part of a step."""
    return finding.about == "feeding" and (finding.gain is None or finding.gain >= THRESHOLDS.least_gain)


def _in_part(finding: Finding, figures: Figures) -> list[str]:
    """That a finding is not all of the headroom, where it is far from it."""
    if finding.gain is None or figures.headroom is None:
        return []
    saved = figures.whole * (1 - 1 / (1 + finding.gain))
    if saved >= THRESHOLDS.explains * figures.headroom * figures.fed_step:
        return []
    return [f"That explains a part of it: {words.gain(finding.gain)} is predicted."]
