"""What every benchmark says beside its figures: the machine it ran on, when, and what an earlier run has left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fulltilt.errors import first_line
from fulltilt.machine.cores import read_cores
from fulltilt.machine.gpus import read_gpus
from fulltilt.machine.software import read_versions, version_of

Say = Callable[[str], None]
"""Hears what is measured next."""


def machine_facts(packages: Mapping[str, str]) -> dict[str, Any]:
    """GPU, driver, cores and versions; `packages` maps a module's name to its distribution's."""
    gpus = read_gpus()
    versions = read_versions(driver=gpus.driver, driver_cuda=gpus.driver_cuda)
    return {
        "gpus": [gpu.name for gpu in gpus.gpus],
        "driver": versions.driver,
        "cores": read_cores().usable,
        "python": versions.python,
        "fulltilt": versions.fulltilt,
        "torch": versions.torch,
        "triton": versions.triton,
        **{distribution: version_of(module, distribution) for module, distribution in packages.items()},
    }


def now() -> str:
    """The date of a result."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def finish(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def said(error: BaseException) -> str:
    """An exception in one short line."""
    return first_line(error, kind=True)[:200].rstrip(": ")


def joined(
    file: Path | None, found: dict[str, Any], *, by: str, order: Sequence[str] | None, key: str = "cases"
) -> dict[str, Any]:
    """What was found, and from an earlier run on the same machine the parts that this one left out, with its date.

    Cases are under `key`, and `by` is what says which part one is of; `order` names all that there may be, None where
    they are anybody's. Every part has its own reference in it, so that parts of two runs stand beside each other and no
    figure is compared across them.
    """
    dates = {case[by]: found["date"] for case in found[key]}
    old = _earlier(file, found)
    if old is None:
        return {**found, "dates": dates}
    kept = [case for case in old.get(key, []) if case[by] not in dates and (order is None or case[by] in order)]
    was = old.get("dates", {})
    dates = {**{case[by]: was.get(case[by], old["date"]) for case in kept}, **dates}
    cases = [*kept, *found[key]]
    if order is not None:
        cases.sort(key=lambda case: order.index(case[by]))
    extra = {"workloads": {**old["workloads"], **found["workloads"]}} if "workloads" in old else {}
    return {**old, **found, **extra, "dates": dates, key: cases}


def with_parts(file: Path | None, found: dict[str, Any], parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The same where a part is some keys of the result, the first of which it always has."""
    dates = {part: found["date"] for part, keys in parts.items() if keys[0] in found}
    old = _earlier(file, found)
    if old is None:
        return {**found, "dates": dates}
    left_out = [part for part, keys in parts.items() if part not in dates and keys[0] in old]
    kept = {key: old[key] for part in left_out for key in parts[part] if key in old}
    was = old.get("dates", {})
    return {**found, **kept, "dates": {**{part: was.get(part, old["date"]) for part in left_out}, **dates}}


def _earlier(file: Path | None, found: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run on the same machine has left in the file."""
    if file is None or not file.exists():
        return None
    try:
        old = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return old if isinstance(old, dict) and old.get("machine") == found["machine"] else None
