"""Results and targets as plain values. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import stdev
from typing import Any, Self

from fulltilt.bench.guides.claims import (
    CLAIMS,
    QUALITY_SLACK,
    SHARE_AT_LEAST,
    UTIL_AT_LEAST,
    UTIL_STD_AT_MOST,
    Claim,
)
from fulltilt.bench.guides.order import AFTER, BEFORE, CONTESTANTS, TUNED_PEERS, Answer
from fulltilt.bench.guides.watch import Utilisation
from fulltilt.bench.results import Result
from fulltilt.bench.target import Target, Titled, in_json

LIMIT = "limit"
ANOTHER_RUN = " (another run)"
"""Behind a title."""
_TITLES = {one.key: one.title for one in CONTESTANTS}
_TENTH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the result. What could not be taken is absent."""

    workload: str
    key: str
    title: str
    answer: Answer
    gpu: Utilisation | None = None
    """While it trained."""
    gpu_whole: Utilisation | None = None
    """Validation and checkpoints in it, as many as fell into the measurement."""
    date: str | None = None
    run: str | None = None
    """When the run began that it is of."""
    another_run: bool = False
    """Of another one than *after*, and not compared with it: the same loop may have another rate in another run."""
    share: float | None = None
    """Of the limit, while training."""
    speed_up: float | None = None
    """Of the whole, validation and checkpoints in it, against *before*."""
    targets: tuple[Target, ...] = ()
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        found = self.answer
        return {
            "workload": self.workload,
            "key": self.key,
            "title": self.title,
            "samples_per_second": found.samples_per_second,
            "overall_per_second": found.overall_per_second,
            "share": self.share,
            "speed_up": self.speed_up,
            "gpu_util": None if self.gpu is None else self.gpu.mean,
            "gpu_util_std": None if self.gpu is None else self.gpu.std,
            "gpu_readings": None if self.gpu is None else self.gpu.readings,
            "gpu_util_whole": None if self.gpu_whole is None else self.gpu_whole.mean,
            "gpu_util_whole_std": None if self.gpu_whole is None else self.gpu_whole.std,
            "gpu_whole_readings": None if self.gpu_whole is None else self.gpu_whole.readings,
            "gpu_series": None if self.gpu_whole is None else list(self.gpu_whole.series) or None,
            "wait_share": found.wait_share,
            "peak_memory_bytes": found.peak_memory_bytes,
            "metric": found.metric,
            "metrics": found.metrics or None,
            "metrics_std": stdev(found.metrics) if len(found.metrics) > 1 else None,
            "steps": found.steps,
            "batch_size": found.batch_size,
            "seconds": found.seconds,
            "setup_seconds": found.setup_seconds,
            "plan": found.plan or None,
            "reasons": found.reasons or None,
            "feed": found.feed or None,
            "note": found.note,
            "targets": in_json(self.targets),
            "date": self.date,
            "run": self.run,
            "another_run": self.another_run or None,
            "problem": self.problem,
            "trace": found.trace or None,
        }

    @classmethod
    def from_json(cls, flat: Mapping[str, Any], *, limit_per_second: float | None = None) -> Self:
        """As an earlier run has left it; what it is to the others is found anew."""
        names = {one.name for one in fields(Answer)} - {"problem"}
        answer = Answer(**{name: value for name, value in flat.items() if name in names})
        answer.problem, answer.limit_per_second = flat.get("problem"), limit_per_second
        return cls(
            workload=flat["workload"], key=flat["key"], title=flat["title"], answer=answer, date=flat.get("date"),
            run=flat.get("run"),
            gpu=_utilisation(flat, "gpu_util", "gpu_util_std", "gpu_readings"),
            gpu_whole=_utilisation(flat, "gpu_util_whole", "gpu_util_whole_std", "gpu_whole_readings", "gpu_series"),
            problem=flat.get("problem"),
        )  # fmt: skip


def _utilisation(flat: Mapping[str, Any], mean: str, std: str, readings: str, series: str = "") -> Utilisation | None:
    if mean not in flat:
        return None
    return Utilisation(mean=flat[mean], std=flat[std], readings=flat[readings], series=tuple(flat.get(series, ())))


def cases_in(result: Mapping[str, Any], workload: str) -> list[Case]:
    """A workload's contestants in the JSON of an earlier run."""
    flat = [case for case in result.get("cases", []) if case["workload"] == workload and case["key"] in _TITLES]
    limit = next(
        (
            case.get("samples_per_second")
            for case in result.get("cases", [])
            if case["workload"] == workload and case["key"] == LIMIT
        ),
        None,
    )
    return [Case.from_json(case, limit_per_second=limit if case["key"] == AFTER else None) for case in flat]


def beside(earlier: Sequence[Case], fresh: Sequence[Case]) -> list[Case]:
    """What was measured now and, of an earlier run, the contestants that were not; in the order of all."""
    new = {case.key for case in fresh}
    places = list(_TITLES)
    found = [*(case for case in earlier if case.key not in new), *fresh]
    return sorted(found, key=lambda case: places.index(case.key) if case.key in places else len(places))


def compared(cases: Sequence[Case], *, hold: bool) -> list[Case]:
    """One workload's cases with what they are to each other, and the limit as a line of its own.

    Args:
        hold: whether targets are held against them; they are for a GPU and the full size.
    """
    by_key = {case.key: case for case in cases}
    after = by_key.get(AFTER)
    found = [
        replace(
            case,
            another_run=after is not None and case.run != after.run,
            share=_ratio(case.answer.samples_per_second, _found(by_key, AFTER, case).limit_per_second),
            speed_up=_ratio(case.answer.overall_per_second, _found(by_key, BEFORE, case).overall_per_second),
        )
        for case in cases
    ]
    if hold:
        found = [replace(case, targets=_targets(case, by_key)) if case.key == AFTER else case for case in found]
    if after is None or after.answer.limit_per_second is None:
        return found
    line = Case(
        workload=after.workload,
        key=LIMIT,
        title="limit: after's step, batch on the device",
        answer=Answer(samples_per_second=after.answer.limit_per_second),
        run=after.run,
        share=1.0,
    )
    place = next(index for index, case in enumerate(found) if case.key == AFTER) + 1
    return [*found[:place], line, *found[place:]]


def _found(by_key: Mapping[str, Case], key: str, beside: Case) -> Answer:
    """What a contestant has found in the same run; of another run nothing is taken."""
    case = by_key.get(key)
    return case.answer if case is not None and case.run == beside.run else Answer()


def _as_much(one: Answer, other: Answer) -> bool:
    """Whether both have trained with the same number of samples, as nearly as whole batches allow.

    Where these are few, half a batch may be much of the whole; such trainings are not compared.
    """
    if one.samples is None or other.samples is None:
        return one.samples == other.samples
    most = min(max(one.batch_size or 1, other.batch_size or 1) / 2, _TENTH * max(one.samples, other.samples))
    return abs(one.samples - other.samples) <= most


def falls_short(metric: float, before: float) -> bool:
    """Of one seed: others are trained then. Of the mean of all: the target is missed.

    The slack is the same for both. A multiple of the seeds' own deviation would be the wider, the worse they are.
    """
    return metric < before - QUALITY_SLACK


def _targets(after: Case, by_key: Mapping[str, Case]) -> tuple[Target, ...]:
    claim = CLAIMS[after.workload]
    mean, std = (None, None) if after.gpu is None else (after.gpu.mean, after.gpu.std)
    before = _found(by_key, BEFORE, after)
    comparable = before.metric is not None and _as_much(before, after.answer)
    floor = before.metric - QUALITY_SLACK if before.metric is not None and comparable else None
    own = after.answer.samples_per_second
    return (
        Target(figure="gpu_util", what="GPU", wanted=UTIL_AT_LEAST, found=mean, unit=" %"),
        Target(
            figure="gpu_util_std", what="GPU, standard deviation", wanted=UTIL_STD_AT_MOST, found=std, unit=" points",
            at_most=True,
        ),
        Target(
            figure="speed_up", what="against before", wanted=claim.speed_up_at_least, found=after.speed_up, unit="×"
        ),
        Target(figure="share", what="of the limit", wanted=SHARE_AT_LEAST, found=after.share, percent=True),
        *(
            Target(
                figure="times_peer", what=f"against {_TITLES[key]}", wanted=1.0,
                found=_ratio(own, _found(by_key, key, after).samples_per_second), unit="×",
            )
            for key in TUNED_PEERS
            if key in by_key
        ),
        Target(
            figure="metric", what="metric, as before within noise", wanted=floor,
            found=after.answer.metric if comparable else None,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidesBench(Result):
    small: bool | None
    """None for the full size."""
    workloads: Mapping[str, Mapping[str, Any]]
    """Name to title, metric and the guide's claim."""
    cases: tuple[Case, ...]

    @property
    def targets(self) -> list[Titled]:
        return [(case.workload, target) for case in self.cases for target in case.targets]


def about(title: str, metric: str, claim: Claim | None) -> dict[str, Any]:
    """What there is to say of a workload besides its figures."""
    said = {} if claim is None else {"guides": claim.guides, "speed": claim.speed, "utilisation": claim.utilisation}
    return {"title": title, "metric": metric, "claim": said or None}


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
