"""Trainings as bars up to their limit, in groups. Standalone SVG, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fulltilt.report.markup import Markup, join, tag

Kind = Literal["after", "other", "before"]
"""Ours; a peer's; where it began."""

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _HEAD, _LINE, _EDGE = 860, 270, 220, 25, 46, 30, 17, 12
_SPAN = _WIDTH - _LEFT - _RIGHT
_PAST = 1.04
"""Of the limit: a bar is drawn no longer, so that it stays clear of its figure."""
_LIMIT = "limit: batch already on the device"
_LONGEST = 54
"""Characters in place of a bar."""
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
    share: float | None
    """Of the limit; None: it was not measured, and the note stands in place of the bar."""
    kind: Kind
    note: str
    """What stands at the right edge, such as its rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bars that have one limit."""

    bars: Sequence[Bar]
    title: str | None = None


def draw(title: str, groups: Sequence[Group], *, heads: tuple[str, str] = ("", ""), below: Sequence[str] = ()) -> str:
    """The picture; the dashed line is the limit.

    `heads` stand over the shares and the notes, each with a line break where it has one; `below` are lines at the foot.
    """
    edge = _LEFT + _SPAN
    lines = max(head.count("\n") for head in heads)
    top = _TOP + lines * _LINE
    shapes: list[Markup] = [
        tag("text", title, class_="title", x=_EDGE, y=20),
        tag("text", _LIMIT, class_="quiet", x=edge, y=top - 8, text_anchor="end"),
        *_head(heads[0], edge + 26, top - 8, "start"),
        *_head(heads[1], _WIDTH - _EDGE, top - 8, "end"),
    ]
    for group in groups:
        if group.title is not None:
            shapes.append(tag("text", group.title, class_="title", x=_EDGE, y=top + 19))
            top += _HEAD
        begun = top
        for bar in group.bars:
            shapes.append(_bar(bar, top))
            top += _ROW
        shapes.append(tag("line", class_="limit", x1=edge, x2=edge, y1=begun, y2=top))
    for line in below:
        top += _LINE
        shapes.append(tag("text", line, class_="quiet", x=_EDGE, y=top + 6))
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


def _head(text: str, x: int, y: int, anchor: str) -> list[Markup]:
    """Its last line at `y`."""
    lines = text.split("\n") if text else []
    return [
        tag("text", line, class_="quiet", x=x, y=y - _LINE * above, text_anchor=anchor)
        for above, line in enumerate(reversed(lines))
    ]


def _bar(bar: Bar, top: int) -> Markup:
    title = tag("text", bar.title, x=_LEFT - 10, y=top + 16, text_anchor="end")
    if bar.share is None:
        said = bar.note if len(bar.note) <= _LONGEST else f"{bar.note[: _LONGEST - 1].rstrip()}…"
        return join(title, tag("text", said, class_="quiet", x=_LEFT, y=top + 16))
    width = f"{max(1.0, min(bar.share, _PAST) * _SPAN):.1f}"
    return join(
        title,
        tag("rect", class_=bar.kind, x=_LEFT, y=top + 3, width=width, height=18, rx=3),
        tag("text", f"{100 * bar.share:.1f} %", x=_LEFT + _SPAN + 26, y=top + 16),
        tag("text", bar.note, class_="quiet", x=_WIDTH - _EDGE, y=top + 16, text_anchor="end"),
    )
