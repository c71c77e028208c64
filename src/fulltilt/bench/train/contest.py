"""Contestants measured in turns: a GPU gets warm and its clock moves, so a figure from minutes ago is no reference."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, replace
from statistics import median

from fulltilt.bench.ground import Say, finish, said
from fulltilt.bench.train.figures import Case
from fulltilt.bench.train.workloads import Running, StepFactory, Workload
from fulltilt.tune.keeping import keep_maths

_WARM_STEPS = 5
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A step before it is made."""

    key: str
    title: str
    make: StepFactory
    reference: bool = False
    """By hand: what the others are measured against, if it is the fastest of its kind."""
    at_least: float | None = None
    """The share of what it is measured against that it has to reach."""
    against: str | None = None
    """The key of another contestant that it is measured against; None: the fastest reference."""


def contest(work: Workload, contestants: list[Contestant], *, rounds: int, seconds: float, say: Say) -> list[Case]:
    """A case for each; one that can't be made is its own line, and the others go on."""
    cases: dict[str, Case] = {}
    ready: dict[str, _Ready] = {}
    as_before = keep_maths()
    for contestant in contestants:
        say(f"{work.key}: {contestant.title}")
        case = Case(
            workload=work.key,
            key=contestant.key,
            title=contestant.title,
            reference=contestant.reference,
            at_least=contestant.at_least,
            against=contestant.against,
        )
        as_before()
        began = time.perf_counter()
        try:
            ready[contestant.key] = _Ready(contestant.make(work), work)
            case = replace(case, setup_seconds=time.perf_counter() - began)
        except Exception as error:
            case = replace(case, problem=said(error))
        gc.collect()
        cases[contestant.key] = case
    per_step: dict[str, list[float]] = {key: [] for key in ready}
    for _ in range(rounds):
        for key, one in ready.items():
            per_step[key].append(one.burst(seconds))
    as_before()
    for key, figures in per_step.items():
        middle = median(figures)
        cases[key] = replace(
            cases[key],
            samples_per_second=work.samples / middle,
            step_seconds=middle,
            spread=(max(figures) - min(figures)) / middle,
            notes=ready[key].running.notes,
        )
    for one in ready.values():
        one.running.close()
    return with_shares(list(cases.values()))


def with_shares(cases: list[Case]) -> list[Case]:
    """Each as a share of what it is measured against."""
    rates = {case.key: case.samples_per_second for case in cases}
    fastest = max((rate for case in cases if case.reference and (rate := case.samples_per_second)), default=None)

    def shared(case: Case) -> Case:
        base = fastest if case.against is None else rates.get(case.against)
        return replace(case, share=case.samples_per_second / base) if base and case.samples_per_second else case

    return [shared(case) for case in cases]


class _Ready:
    """A contestant, and torch's process-wide switches as it has set them: the next one sets them its own way."""

    def __init__(self, running: Running, work: Workload) -> None:
        self.running, self._work = running, work
        self._set_switches = keep_maths()
        if running.step is None:
            return
        for _ in range(_WARM_STEPS):
            running.step(*work.batch)
        self._steps = max(_LEAST_STEPS, math.ceil(0.1 / (self._run(_LEAST_STEPS) / _LEAST_STEPS)))

    def burst(self, seconds: float) -> float:
        """Seconds per step over about so long."""
        self._set_switches()
        if self.running.burst is not None:
            return self.running.burst(seconds)
        self._run(_LEAST_STEPS)  # the other's burst has emptied caches
        once = self._run(self._steps) / self._steps
        count = max(_LEAST_STEPS, math.ceil(seconds / once))
        return self._run(count) / count

    def _run(self, count: int) -> float:
        step, batch = self.running.step, self._work.batch
        assert step is not None
        finish(self._work.device)
        began = time.perf_counter()
        for _ in range(count):
            step(*batch)
        finish(self._work.device)
        return max(time.perf_counter() - began, 1e-9)
