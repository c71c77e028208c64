"""Cases against the limit: the step's rate with its batch on the device already, measured anew around every case.

A GPU gets warm and its clock moves by a few percent: a limit from minutes ago is no limit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat
from statistics import median
from typing import Any

import torch

from fulltilt.bench.feed.figures import Case, Rate
from fulltilt.bench.feed.measure import measure
from fulltilt.bench.feed.models import GraphedStep, Step
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say, said
from fulltilt.bench.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A case before it is measured."""

    key: str
    title: str
    run: Callable[[], Rate]
    wanted: tuple[Target, ...] = ()
    unavailable: str | None = None
    """Why it can't be measured here."""


def attempt(part: str, plan: Plan, say: Say) -> Case:
    """Its rate, or why there is none: a case that fails is its own line, and the others go on."""
    case = Case(part=part, key=plan.key, title=plan.title, wanted=plan.wanted, problem=plan.unavailable)
    if plan.unavailable is not None:
        return case
    say(f"{part}: {plan.title}")
    try:
        return replace(case, rate=plan.run())
    except Exception as error:
        problem = said(error)
    # What the failure still holds: the next case needs its memory. Only then: a Ctrl-C while garbage is collected would
    # land in a finalizer and be lost.
    gc.collect()
    return replace(case, problem=problem)


class Limit:
    """The rate with one batch that is there already."""

    def __init__(self, step: Step | GraphedStep, batch: tuple[Any, ...], scale: Scale) -> None:
        self._step, self._batch, self._scale = step, batch, scale
        self.rates: list[float] = []

    def warm(self) -> None:
        """Compile, and let the libraries choose their kernels."""
        for _ in range(self._scale.warm_steps):
            self._step(*self._batch)
        if self._scale.gpu:
            torch.cuda.synchronize()

    def measure(self) -> float:
        steps = self._scale.limit_steps
        rate = measure(repeat(self._batch), self._step, device=self._scale.device, warm=2, steps=steps, seconds=60.0)
        self.rates.append(rate.samples_per_second)
        return rate.samples_per_second

    def case(self, part: str, title: str) -> Case:
        """The limit itself as a line: the median of all its measurements."""
        spread = (max(self.rates) - min(self.rates)) / median(self.rates)
        steps = self._scale.limit_steps * len(self.rates)
        rate = Rate(
            samples_per_second=median(self.rates),
            steps=steps,
            seconds=steps * len(self._batch[0]) / median(self.rates),
            note=f"measured {len(self.rates)} times, {100 * spread:.1f} % apart",
        )
        return Case(part=part, key=f"{part}_limit", title=title, rate=rate)


def against(limit: Limit, part: str, title: str, plans: list[Plan], say: Say) -> list[Case]:
    """Limit, case, limit, case, …, limit; the limit's own line comes first."""
    limit.warm()
    before = limit.measure()
    cases = []
    for plan in plans:
        case = attempt(part, plan, say)
        if case.rate is not None:
            after = limit.measure()
            case, before = replace(case, limit_per_second=(before + after) / 2), after
        cases.append(case)
    return [limit.case(part, title), *cases]
