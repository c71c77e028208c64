"""Figures that are not shown, and why. The result files keep what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SHORT_EPOCHS = (
    "not shown: an epoch had 16 batches for all its workers, which idled at the end of each; the benchmark has one "
    "endless epoch now, and was not run again yet"
)
WITHHELD: Mapping[str, tuple[tuple[Mapping[str, str], str], ...]] = {
    "h200/feed.json": (({"key": "loader_tuned"}, _SHORT_EPOCHS),),
    "h200/scaling.json": (({"series": "loader"}, _SHORT_EPOCHS),),
}
"""Result → what the cases have that are meant, and why."""
_NAMES = ("part", "key", "title", "series", "x", "workload")
"""What stays of a case: all that are no figures."""


def read(results: Path, name: str) -> dict[str, Any]:
    """A result, with the reason in place of the figures that are withheld."""
    result: dict[str, Any] = json.loads((results / name).read_text(encoding="utf-8"))
    for meant, why in WITHHELD.get(name, ()):
        result["cases"] = [_without_figures(case, why) if meant.items() <= case.items() else case
                           for case in result["cases"]]  # fmt: skip
    return result


def _without_figures(case: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {**{name: case[name] for name in _NAMES if name in case}, "problem": why}
