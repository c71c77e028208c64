"""What all benchmarks' results have in common: which parts were asked for, and figures as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fulltilt.errors import InputError


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
