"""What keeps a script below its step's limit, once all that pays has been done for it or nothing is known to. Pure."""

from __future__ import annotations

from fulltilt import words
from fulltilt.measure.observation import Observation

from .figures import Figures
from .finding import Limits
from .thresholds import THRESHOLDS

_NAMED = 2
"""Causes, and stages of a loader, that are told."""


def remaining(seen: Observation, limit: float | None, *, cores: int) -> str | None:
    """One sentence; None at the limit, or where it is not known.

    Compared is with the step whose batches lie on the device already: what that leaves out is waiting for batches, the
    starts of epochs and copies. Whatever is slower beyond these is slowed down by the loader's work beside it, as far
    as that can be (`Figures.reach`).
    """
    figures = Figures(observation=seen, limits=Limits(step=limit, loader=None))
    at_limit = figures.limit
    if at_limit is None or figures.steps < THRESHOLDS.least_steps:
        return None
    if at_limit >= THRESHOLDS.near_limit * figures.fed_step:
        return None
    return f"at {words.percent(at_limit / figures.fed_step)} of the limit: {in_the_way(figures, at_limit, cores=cores)}"


def in_the_way(figures: Figures, at_limit: float, *, cores: int) -> str:
    """What a step's time beyond its limit goes to; `at_limit` are a step's seconds there."""
    parts = {
        _batches(figures, cores): figures.wait,
        "epochs that start": figures.cost("epoch start"),
        "copies to the device": figures.phases.get("copy", 0.0),
    }
    beyond = figures.fed_step - at_limit
    if (seen := sum(parts.values())) > beyond:  # the device worked during a part of them
        parts = {cause: seconds * beyond / seen for cause, seconds in parts.items()}
    left = max(beyond - seen, 0.0)
    less_busy = min(max((figures.reach or 0.0) - at_limit, 0.0), left)
    parts[_beside(figures, cores)] = left - less_busy
    parts["a machine that was less busy when the limit was measured"] = less_busy
    ranked = sorted(((seconds / figures.fed_step, cause) for cause, seconds in parts.items()), reverse=True)
    named = ranked[:1] + [part for part in ranked[1:_NAMED] if part[0] >= THRESHOLDS.no_headroom]
    return ", ".join(f"{words.percent(share)} of the time is {cause}" for share, cause in named)


def _batches(figures: Figures, cores: int) -> str:
    loader = figures.train_loader
    if loader is None or not loader.num_workers:
        return "batches that are made between the steps"
    where = f"{words.many(loader.num_workers, 'worker')} on {words.many(cores, 'core')}"
    most = _most(figures)
    return f"waiting for batches ({where} make no more{f'; {most}' if most else ''})"


def _beside(figures: Figures, cores: int) -> str:
    loader = figures.train_loader
    workers = 0 if loader is None else loader.num_workers
    if figures.observation.world > 1:
        return "a step that waits for other ranks, or is slowed down by the work of feeding it"
    if workers + 1 >= cores and workers:
        beside = f"{words.many(workers, 'worker')} beside it on {cores} cores"
        most = _most(figures)
        return f"a step slowed down by {beside}{f' ({most})' if most else ''}"
    return "a step slowed down by the work of feeding it"


def _most(figures: Figures) -> str:
    """The stages that most of the workers' work is in."""
    ranked = [part for part in figures.ranked_stages()[:_NAMED] if part[1] >= THRESHOLDS.no_headroom]
    told = ", ".join(f"{stage.name} {words.percent(share)}" for stage, share in ranked)
    return f"{told} of their work" if told else ""
