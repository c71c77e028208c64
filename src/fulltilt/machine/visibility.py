"""Which CUDA index a GPU has in this environment, when that can be told without starting CUDA.

CUDA_VISIBLE_DEVICES chooses and orders the devices: by UUID (or its beginning), which is exact, or by number, which
counts in CUDA's own order. That order is "fastest first" unless CUDA_DEVICE_ORDER=PCI_BUS_ID, and CUDA alone knows
which it thinks the fastest. So a number is given only where every order agrees; otherwise the reason is.

The parsing follows CUDA's, as PyTorch's own device count does: the list ends at the first entry that names no device,
and an entry named twice hides everything.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What has to be known of a GPU or MIG slice to number it."""

    uuid: str | None
    pci: str | None
    name: str | None
    mig: bool = False
    readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaIndex:
    """A device's CUDA index, or why there is none."""

    index: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """What a process started in this environment sees."""

    count: int
    """How many devices; known even where their numbers are not."""
    indices: tuple[CudaIndex, ...]
    """For each unit, in the order given."""


def visibility(units: Sequence[Unit], environment: Mapping[str, str]) -> Visibility:
    """What the environment leaves visible of the units, and under which CUDA index."""
    listed = environment.get(VISIBLE)
    if listed is not None and listed.startswith(("GPU-", "MIG-")):
        return _by_uuid(units, listed)
    positions = list(range(len(units))) if listed is None else _numbers(listed)
    beyond = next((at for at, position in enumerate(positions) if position >= len(units)), len(positions))
    positions = positions[:beyond]  # no such device: it and what follows are ignored
    result = [CudaIndex(reason=f"hidden by {VISIBLE}={listed}")] * len(units)
    doubt = _doubt(units, environment.get(ORDER)) if positions else None
    if doubt is not None:
        readable = sum(unit.readable for unit in units)
        return Visibility(count=min(len(positions), readable), indices=(CudaIndex(reason=doubt),) * len(units))
    in_order = sorted(range(len(units)), key=lambda number: units[number].pci or "")
    for index, position in enumerate(positions):
        result[in_order[position]] = CudaIndex(index=index)
    return Visibility(count=len(positions), indices=tuple(result))


def _by_uuid(units: Sequence[Unit], listed: str) -> Visibility:
    entries = list(itertools.takewhile(lambda entry: entry.startswith(listed[:4]), listed.split(",")))
    chosen: list[int] = []
    for entry in entries if len(set(entries)) == len(entries) else ():
        fitting = [number for number, unit in enumerate(units) if (unit.uuid or "").startswith(entry)]
        if entry.startswith("MIG-GPU-") and not fitting:
            doubt = CudaIndex(reason=f"{VISIBLE} names a slice in the old form; name it by UUID")
            return Visibility(count=1, indices=(doubt,) * len(units))
        if len(fitting) != 1:  # unknown, or the beginning of several
            break
        if fitting[0] in chosen:
            chosen = []
            break
        chosen.append(fitting[0])
    hidden = CudaIndex(reason=f"hidden by {VISIBLE}={listed}")
    result = [hidden] * len(units)
    for index, number in enumerate(chosen):
        if units[number].mig and index > 0:
            result[number] = CudaIndex(reason="a process may see only the first MIG slice that it is given")
        else:
            result[number] = CudaIndex(index=index)
    return Visibility(count=len(chosen), indices=tuple(result))


def _numbers(listed: str) -> list[int]:
    """The numbers that CUDA reads from the list: each entry up to its first character that is no digit."""
    numbers: list[int] = []
    for entry in listed.split(","):
        found = re.match(r"[+-]?\d+", entry.strip())
        number = int(found[0]) if found else -1
        if number in numbers:
            return []
        if number < 0:
            break
        numbers.append(number)
    return numbers


def _doubt(units: Sequence[Unit], order: str | None) -> str | None:
    """Why counting by number is uncertain, or None when every order that CUDA could take is the same."""
    if not all(unit.readable for unit in units):
        return "a GPU of this machine can't be read, and it may count"
    if any(unit.mig for unit in units):
        return f"with MIG, CUDA numbers slices by a rule of its own; name one by UUID in {VISIBLE}"
    if len(units) == 1 or order == "PCI_BUS_ID" or len({unit.name for unit in units}) == 1:
        return None
    return f"the GPUs differ and CUDA puts the fastest first; {ORDER}=PCI_BUS_ID settles it"
