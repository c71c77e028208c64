"""The edits that do by hand what a plan does from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fulltilt import words
from fulltilt.diagnose.finding import Finding
from fulltilt.diagnose.thresholds import THRESHOLDS
from fulltilt.launch.settings import SETTINGS


def by_hand(
    settings: Mapping[str, Any],
    findings: Sequence[Finding] = (),
    *,
    command: str = "python train.py",
    optimizer: str | None = None,
    augmentation: str | None = None,
) -> list[str]:
    """Lines to read: for each setting how it is written, and below it what it does; diffs of the user's lines where
    known.

    `augmentation` is the training loader's transforms as an expression.
    """
    lines = []
    for name, value in settings.items():
        lines += [f"  {_written(name, value, command=command, optimizer=optimizer)}", f"      {SETTINGS[name].says}"]
        if name == "augment" and augmentation is not None:
            lines.append(f"      augment = {augmentation}")
    concerned = (finding for finding in findings if finding.settings.keys() & settings.keys())
    diffs = dict.fromkeys(finding.diff.rstrip() for finding in concerned if finding.diff)
    return lines + [line for diff in diffs for line in ("", diff)]


def only_by_hand(findings: Sequence[Finding]) -> list[str]:
    """What nobody can set from outside, the greatest gain first: `+94 %, train.py:13: DataLoader(…)`."""
    return [
        ", ".join(filter(None, (words.gain(one.gain), str(one.place) if one.place else None))) + f": {one.fix}"
        for one in findings
        if not one.settings and one.gain is not None and one.gain >= THRESHOLDS.least_gain
    ]


def _written(name: str, value: Any, *, command: str, optimizer: str | None) -> str:
    if name == "compile" and isinstance(value, str):
        return f'model.compile(mode="{value}")'
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return SETTINGS[name].by_hand.format(value=value, command=command, optimizer=optimizer or "torch.optim.…")
