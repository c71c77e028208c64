"""The edits that do by hand what a plan does from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fulltilt.diagnose.finding import Finding
from fulltilt.launch.settings import SETTINGS


def by_hand(
    settings: Mapping[str, Any], findings: Sequence[Finding] = (), *, augmentation: str | None = None
) -> list[str]:
    """Lines to read: for each setting what it does and how it is written; diffs of the user's lines where known.

    `augmentation` is the training loader's transforms as an expression.
    """
    lines = [
        f"{name} = {value!r}: {SETTINGS[name].says}; by hand: {SETTINGS[name].by_hand.format(value=value)}"
        for name, value in settings.items()
    ]
    if "augment" in settings and augmentation is not None:
        lines.append(f"augment = {augmentation}")
    concerned = (finding for finding in findings if finding.settings.keys() & settings.keys())
    return lines + [finding.diff.rstrip() for finding in concerned if finding.diff]
