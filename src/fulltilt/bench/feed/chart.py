"""Training against its limit as a picture: one bar for each way to feed it."""

from __future__ import annotations

from typing import Any

from fulltilt.bench.bars import Bar, Group, draw


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON, a bar for every case that has a limit; None where there is none."""
    cases = [case for case in result["cases"] if "share" in case]
    if not cases:
        return None
    return draw("Training from files, as a share of its limit", [Group(bars=[_bar(case) for case in cases])])


def _bar(case: dict[str, Any]) -> Bar:
    theirs = case["title"].startswith("DataLoader")
    note = f"{case['samples_per_second']:,.0f}/s"
    return Bar(title=case["title"], share=case["share"], kind="other" if theirs else "after", note=note)
