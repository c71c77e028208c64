"""Trainings as bars up to their limit, in groups. Standalone SVG, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fulltilt.report.markup import Markup, join, tag

Kind = Literal["after", "other", "before"]
"""Ours; a peer's; where it began."""

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _HEAD = 860, 330, 170, 25, 46, 30
_SPAN = _WIDTH - _LEFT - _RIGHT
_PAST = 1.04
"""Of the limit: a bar is drawn no longer, so that it stays clear of its figure."""
_STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #24292f }
.title { font-weight: 600 } .quiet { fill: #57606a }
.after { fill: #2da44e } .other { fill: #8c959f } .before { fill: #bf8700 }
.limit { stroke: #cf222e; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9198a1 } .after { fill: #3fb950 } .other { fill: #6e7681 }
  .before { fill: #d29922 } .limit { stroke: #f85149 }
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One training."""

    title: str
    share: float
    """Of the limit."""
    kind: Kind
    note: str
    """What stands at the right edge, such as its rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bars that have one limit."""

    bars: Sequence[Bar]
    title: str | None = None


def draw(title: str, groups: Sequence[Group]) -> str:
    """The picture; the dashed line is the limit."""
    edge, top = _LEFT + _SPAN, _TOP
    shapes: list[Markup] = [
        tag("text", title, class_="title", x=12, y=20),
        tag("text", "batch already on the device", class_="quiet", x=edge, y=38, text_anchor="middle"),
    ]
    for group in groups:
        if group.title is not None:
            shapes.append(tag("text", group.title, class_="title", x=12, y=top + 19))
            top += _HEAD
        begun = top
        for bar in group.bars:
            shapes.append(_bar(bar, top))
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
            aria_label=title,
        )
        + "\n"
    )


def _bar(bar: Bar, top: int) -> Markup:
    width = f"{max(1.0, min(bar.share, _PAST) * _SPAN):.1f}"
    return join(
        tag("text", bar.title, x=_LEFT - 10, y=top + 16, text_anchor="end"),
        tag("rect", class_=bar.kind, x=_LEFT, y=top + 3, width=width, height=18, rx=3),
        tag("text", f"{100 * bar.share:.1f} %", x=_LEFT + _SPAN + 26, y=top + 16),
        tag("text", bar.note, class_="quiet", x=_WIDTH - 12, y=top + 16, text_anchor="end"),
    )
