"""Each workload's contestants as a picture."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from fulltilt.bench.bars import Bar, Group, Kind, draw
from fulltilt.bench.guides.figures import LIMIT
from fulltilt.bench.guides.order import AFTER, BEFORE
from fulltilt.recipes.catalog import RECIPES

_BELOW = ("Bars and %: training alone, against the limit of fulltilt's step. ×: whole training, validation included.",)


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON; None where no case has a limit to be held against.

    One that failed has a line that says so beside the bars of its workload.
    """
    measured = {case["workload"] for case in result["cases"] if "share" in case and case["key"] != LIMIT}
    if not measured:
        return None
    cases = [
        case
        for case in result["cases"]
        if case["workload"] in measured and case["key"] != LIMIT and ("share" in case or "problem" in case)
    ]
    groups = [
        Group(
            title=f"{workload}: {_title(workload, result)}",
            bars=[_bar(case) for case in of_one],
        )
        for workload, of_one in groupby(cases, key=lambda case: case["workload"])
    ]
    return draw(
        "The guides' workloads: training as a share of its limit",
        groups,
        heads=("training:\nof the limit", "whole training:\nagainst before"),
        below=_BELOW,
    )


def _title(workload: str, result: dict[str, Any]) -> str:
    """The recipe's own, as everywhere; of one that is no more, that of the result."""
    if workload in RECIPES:
        return RECIPES[workload].title
    title: str = result["workloads"].get(workload, {}).get("title", "")
    return title


def _bar(case: dict[str, Any]) -> Bar:
    if "share" not in case:
        return Bar(title=case["title"], share=None, kind="other", note=f"not measured: {case['problem']}")
    note = f"{case['speed_up']:.1f}×" if "speed_up" in case else ""
    kinds: dict[str, Kind] = {BEFORE: "before", AFTER: "after"}
    return Bar(title=case["title"], share=case["share"], kind=kinds.get(case["key"], "other"), note=note)
