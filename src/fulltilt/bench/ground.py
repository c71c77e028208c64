"""What every benchmark says beside its figures: the machine it ran on, and when; and what several of them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
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
