"""Each workload's contestants as a picture."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from fulltilt.bench.bars import Bar, Group, Kind, draw
from fulltilt.bench.guides.figures import LIMIT
from fulltilt.bench.guides.order import AFTER, BEFORE


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON; None where no case has a limit to be held against."""
    cases = [case for case in result["cases"] if "share" in case and case["key"] != LIMIT]
    if not cases:
        return None
    groups = [
        Group(
            title=f"{workload}: {result['workloads'].get(workload, {}).get('title', '')}",
            bars=[_bar(case) for case in of_one],
        )
        for workload, of_one in groupby(cases, key=lambda case: case["workload"])
    ]
    return draw("The guides' workloads: training as a share of its limit", groups)


def _bar(case: dict[str, Any]) -> Bar:
    note = f"{case['speed_up']:.1f}×" if "speed_up" in case else ""
    kinds: dict[str, Kind] = {BEFORE: "before", AFTER: "after"}
    return Bar(title=case["title"], share=case["share"], kind=kinds.get(case["key"], "other"), note=note)
