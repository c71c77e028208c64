"""What stands between the steps: evaluation, checkpoints, logging, the script's own code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

from fulltilt import words
from fulltilt.measure.observation import Phase

from ..figures import Figures
from ..finding import Finding
from ..thresholds import THRESHOLDS


def between(figures: Figures) -> list[Finding]:
    if not figures.whole:
        return []
    return [
        *_seldom(figures, "eval", "evaluation", THRESHOLDS.evaluation, "Evaluation takes", partial(_evaluate, figures)),
        *_seldom(figures, "checkpoint", "checkpoints", THRESHOLDS.checkpoint, "Writing checkpoints takes", _save),
        *_logging(figures),
        *_own_code(figures),
    ]


def _evaluate(figures: Figures, every: str) -> str:
    alone = any(loader.role == "eval" and not loader.num_workers for loader in figures.observation.loaders)
    workers = "; give the evaluation's loader workers too" if alone else ""
    return f"Evaluate every {every} time, or on a part of the data{workers}"


def _save(every: str) -> str:
    return f"Save every {every} time, or in a thread beside the training (fulltilt.train's checkpoints do)"


def _seldom(
    figures: Figures, phase: Phase, cause: str, least: float, takes: str, fix: Callable[[str], str]
) -> list[Finding]:
    """Work that could be done less often: so often that it takes no more than its share."""
    seconds = figures.cost(phase)
    share = seconds / figures.whole
    if share < least:
        return []
    allowed = THRESHOLDS.kept_evaluation * (figures.whole - seconds)
    every = max(2, ceil(seconds / allowed)) if allowed > 0 else 2
    saved = seconds * (1 - 1 / every)
    within = min(figures.phases.get(phase, 0.0), saved)
    outside = figures.whole - figures.step - (saved - within)
    return [
        Finding(
            cause=cause,
            title=f"{takes} {words.percent(share)} of the time",
            evidence=(f"{words.seconds(seconds)} for each step of {words.seconds(figures.step)}",),
            gain=figures.gain(step=figures.step - within, outside=outside),
            fix=fix(words.ordinal(every)),
            about="between",
            seconds=seconds,
        )
    ]


def _logging(figures: Figures) -> list[Finding]:
    seconds = figures.cost("logging")
    if seconds < THRESHOLDS.logging * figures.whole:
        return []
    return [
        Finding(
            cause="logging",
            title=f"Logging takes {words.percent(seconds / figures.whole)} of the time",
            evidence=(f"{words.seconds(seconds)} for each step of {words.seconds(figures.step)}",),
            gain=figures.gain(step=figures.step - min(seconds, figures.phases.get("logging", 0.0)) * 0.9),
            fix="Log every 10th to 50th step",
            about="step",
            seconds=seconds,
        )
    ]


def _own_code(figures: Figures) -> list[Finding]:
    seconds = figures.phases.get("other", 0.0)
    if seconds < THRESHOLDS.other * figures.step:
        return []
    loader, share = figures.train_loader, words.percent(seconds / figures.step)
    elsewhere = loader is not None and loader.elsewhere
    among = ""
    if loader is None:
        among = "; the script has no DataLoader, so its loading is among it"
    elif elsewhere:
        among = "; another thread asks the DataLoader for batches, so waiting for them is among it"
    return [
        Finding(
            cause="own-code",
            title=f"{share} of each step is waiting for the thread that loads, or the script's own code"
            if elsewhere
            else f"{share} of each step is the script's own code between the phases",
            evidence=(f"{words.seconds(seconds)} of a step of {words.seconds(figures.step)} lie in no phase{among}",),
            gain=None,
            fix="Iterate over the DataLoader in the loop itself, with workers (num_workers=…): they load ahead without "
            "a thread, and what is waited for is seen"
            if elsewhere
            else "Look at what the loop does beside forward, backward and optimizer: loading and augmenting belong "
            "into a DataLoader or onto the GPU",
            place=loader.place if elsewhere and loader is not None else None,
            about="feeding" if elsewhere else "step",
            seconds=seconds,
        )
    ]
