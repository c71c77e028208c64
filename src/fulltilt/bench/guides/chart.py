"""Each workload's contestants as a picture: bars up to the limit. Standalone SVG, light and dark."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from fulltilt.report.markup import Markup, join, tag

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _HEAD = 860, 250, 170, 24, 46, 30
_SPAN = _WIDTH - _LEFT - _RIGHT
_STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #24292f }
.title { font-weight: 600 } .quiet { fill: #57606a }
.after { fill: #2da44e } .other { fill: #8c959f } .before { fill: #bf8700 }
.limit { stroke: #cf222e; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9198a1 } .after { fill: #3fb950 } .other { fill: #6e7681 }
  .before { fill: #d29922 } .limit { stroke: #f85149 }
}"""
_TITLE = "The guides' workloads: training as a share of its limit"


def chart(result: dict[str, Any]) -> str | None:
    """From the benchmark's JSON; None where no case has a limit to be held against."""
    cases = [case for case in result["cases"] if "share" in case and case["key"] != "limit"]
    if not cases:
        return None
    shapes: list[Markup] = [tag("text", _TITLE, class_="title", x=12, y=20)]
    top, edge = _TOP, _LEFT + _SPAN
    shapes.append(tag("text", "batch already on the device", class_="quiet", x=edge, y=38, text_anchor="middle"))
    for workload, group in groupby(cases, key=lambda case: case["workload"]):
        title = result["workloads"].get(workload, {}).get("title", "")
        shapes.append(tag("text", f"{workload}: {title}", class_="title", x=12, y=top + 19))
        top += _HEAD
        begun = top
        for case in group:
            shapes.append(_bar(case, top))
            top += _ROW
        shapes.append(tag("line", class_="limit", x1=edge, x2=edge, y1=begun, y2=top))
    height = top + 12
    return (
        tag(
            "svg",
            tag("style", Markup(_STYLE)),
            *shapes,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_WIDTH} {height}",
            width=_WIDTH,
            height=height,
            role="img",
            aria_label=_TITLE,
        )
        + "\n"
    )


def _bar(case: dict[str, Any], top: int) -> Markup:
    share = case["share"]
    width = f"{max(1.0, min(share, 1.04) * _SPAN):.1f}"
    times = f"{case['speed_up']:.1f}×" if "speed_up" in case else ""
    kind = case["key"] if case["key"] in ("before", "after") else "other"
    return join(
        tag("text", case["title"], x=_LEFT - 10, y=top + 16, text_anchor="end"),
        tag("rect", class_=kind, x=_LEFT, y=top + 3, width=width, height=17, rx=3),
        tag("text", f"{100 * share:.0f} %", x=_LEFT + _SPAN + 26, y=top + 16),
        tag("text", times, class_="quiet", x=_WIDTH - 12, y=top + 16, text_anchor="end"),
    )
