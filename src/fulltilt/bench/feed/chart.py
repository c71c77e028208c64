"""Training against its limit as a picture: one bar for each way to feed it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from fulltilt.bench.bars import Bar, Group, draw

_LABELS = {
    "fast": "fast decoding",
    "exact": "exact decoding",
    "cache": "from a cache",
    "auto": "16 cores, share found automatically",
    "cores_8": "8 cores, share found automatically",
    "cores_8_cpu": "8 cores, CPU decodes alone",
    "cores_8_gpu": "8 cores, GPU decodes alone",
    "cores_4": "4 cores, share found automatically",
    "cores_4_cpu": "4 cores, CPU decodes alone",
    "cores_4_gpu": "4 cores, GPU decodes alone",
    "unet_fast": "with masks and augmentation",
}
"""Shorter than the titles of the table: what is common stands over the bars."""
_PARTS = {"cores": ", CPU and GPU decode"}
"""What sets a part apart from another that trains the same."""
_TUNED = "loader_tuned"


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON, a bar for every case that has a limit; None where there is none.

    An untuned DataLoader is left out where the tuned one was not measured: alone it is no comparison.
    """
    cases = [case for case in result["cases"] if "share" in case]
    if not any(case["key"] == _TUNED for case in cases):
        cases = [case for case in cases if not _theirs(case)]
    if not cases:
        return None
    limits = {case["part"]: case for case in result["cases"] if case["key"].endswith("_limit")}
    groups = [
        Group(title=_heading(part, limits.get(part)), bars=[_bar(case) for case in of_one])
        for part, of_one in groupby(cases, key=lambda case: case["part"])
    ]
    return draw("Training from files, as a share of its limit", groups)


def _heading(part: str, limit: dict[str, Any] | None) -> str | None:
    """What is trained, and how fast it could be: each part has measured its own."""
    if limit is None or "samples_per_second" not in limit:
        return None
    return f"{limit['title'].removeprefix('limit: ')}{_PARTS.get(part, '')}: limit {limit['samples_per_second']:,.0f}/s"


def _theirs(case: dict[str, Any]) -> bool:
    return bool(case["title"].startswith("DataLoader"))


def _bar(case: dict[str, Any]) -> Bar:
    return Bar(
        title=_LABELS.get(case["key"], case["title"]),
        share=case["share"],
        kind="other" if _theirs(case) else "after",
        note=f"{case['samples_per_second']:,.0f}/s",
    )
