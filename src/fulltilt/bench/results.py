"""What all benchmarks' results have in common: which parts were asked for, figures as JSON, and what an earlier run has
left in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fulltilt.bench.target import Titled
from fulltilt.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that a benchmark has measured, and on what. What else there is to say, each benchmark adds."""

    machine: Mapping[str, Any]
    date: str
    seconds: float
    """The whole run, with all that comes before measuring."""
    cases: tuple[Any, ...] = ()
    problem: str | None = None
    """Why not all could be measured, or is held to a target."""

    @property
    def targets(self) -> list[Titled]:
        return [(case.title, target) for case in self.cases for target in case.targets]

    def to_json(self) -> dict[str, Any]:
        flat = {one.name: getattr(self, one.name) for one in fields(self)}
        found: dict[str, Any] = as_measured({**flat, "cases": [case.to_json() for case in self.cases]})
        return found


def parts_of(text: str, parts: Sequence[str]) -> tuple[str, ...]:
    """What `--only` names, in the order in which `parts` are run."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - set(parts))
    if unknown or not wanted:
        raise InputError(f"--only: found {', '.join(unknown) or 'nothing'}; allowed: {', '.join(parts)}")
    return tuple(part for part in parts if part in wanted)


def as_measured(value: Any) -> Any:
    """For a JSON file: rounded to what was measured, and without what was not."""
    if isinstance(value, Mapping):
        return {key: as_measured(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_measured(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def joined(file: Path | None, found: dict[str, Any], *, by: str, order: Sequence[str] | None) -> dict[str, Any]:
    """What was found, and from an earlier run on the same machine the parts that this one left out, with its date.

    `by` is what says which part a case is of; `order` names all that there may be, None where they are anybody's. Every
    part has its own reference in it, so that parts of two runs stand beside each other and no figure is compared across
    them.
    """
    dates = {case[by]: found["date"] for case in found["cases"]}
    old = _alike_in(file, found)
    if old is None:
        return {**found, "dates": dates}
    kept = [case for case in old.get("cases", []) if case[by] not in dates and (order is None or case[by] in order)]
    was = old.get("dates", {})
    dates = {**{case[by]: was.get(case[by], old["date"]) for case in kept}, **dates}
    cases = [*kept, *found["cases"]]
    if order is not None:
        cases.sort(key=lambda case: order.index(case[by]))
    extra = {"workloads": {**old["workloads"], **found["workloads"]}} if "workloads" in old else {}
    return {**old, **found, **extra, "dates": dates, "cases": cases}


def with_parts(file: Path | None, found: dict[str, Any], parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The same where a part is some keys of the result, the first of which it always has."""
    dates = {part: found["date"] for part, keys in parts.items() if keys[0] in found}
    old = _alike_in(file, found)
    if old is None:
        return {**found, "dates": dates}
    left_out = [part for part, keys in parts.items() if part not in dates and keys[0] in old]
    kept = {key: old[key] for part in left_out for key in parts[part] if key in old}
    was = old.get("dates", {})
    return {**found, **kept, "dates": {**{part: was.get(part, old["date"]) for part in left_out}, **dates}}


def earlier_in(file: Path | None) -> dict[str, Any] | None:
    """What a run before has left in the file, if anything."""
    try:
        found = None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def alike(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Of the same machine and size: others' figures never stand in one result."""
    return one is not None and all(one.get(key) == other.get(key) for key in ("machine", "small"))


def _alike_in(file: Path | None, found: Mapping[str, Any]) -> dict[str, Any] | None:
    old = earlier_in(file)
    return old if alike(old, found) else None
