"""What every benchmark says beside its figures: the machine it ran on, and whether its targets were met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fulltilt.machine.cores import read_cores
from fulltilt.machine.gpus import read_gpus
from fulltilt.machine.software import read_versions, version_of


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


def all_met(answers: Iterable[bool | None]) -> bool | None:
    """All targets met; None where there are none, or one could not be measured and the rest were met."""
    found = list(answers)
    if False in found:
        return False
    return True if found and None not in found else None


def said(error: BaseException) -> str:
    """An exception in one short line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:200].rstrip(": ")
