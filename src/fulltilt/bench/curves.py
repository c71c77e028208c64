"""Curves as a picture: panels side by side, each with its own axes. Standalone SVG, light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fulltilt.report.markup import Markup, join, tag
from fulltilt.report.svg import Scale, number, ticks

_WIDTH, _LEFT, _RIGHT, _GAP = 204, 54, 14, 14
"""Three panels fit a page of text without becoming small print."""
_PLOT, _HEAD, _AXIS, _LINE = 190, 46, 40, 18
_COLOURS = 8
_STYLE = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px } .panel { font-weight: 600 } .quiet { fill: #57606a; font-size: 11px }
.grid { stroke: #d0d7de } .curve { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 6 5 }
.c0 { stroke: #2da44e } .c1 { stroke: #0969da } .c2 { stroke: #bc4c00 } .c3 { stroke: #8250df }
.c4 { stroke: #cf222e } .c5 { stroke: #6e7781 } .c6 { stroke: #1b7c83 } .c7 { stroke: #9a6700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .quiet { fill: #9198a1 } .grid { stroke: #30363d }
  .c0 { stroke: #3fb950 } .c1 { stroke: #58a6ff } .c2 { stroke: #f0883e } .c3 { stroke: #bc8cff }
  .c4 { stroke: #f85149 } .c5 { stroke: #8b949e } .c6 { stroke: #39c5cf } .c7 { stroke: #d29922 }
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a panel."""

    label: str
    points: tuple[tuple[float, float], ...]
    """In order of x, which is above zero."""
    dashed: bool = False
    """For a limit: what the others are held against. Drawn last, so that a line that it lies on shows in its gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. x is on a scale that doubles, with a mark at every value that was measured."""

    title: str
    """What y is, and its unit."""
    x_label: str
    curves: tuple[Curve, ...]
    y_top: float | None = None
    """None: what the highest point needs."""


def draw(title: str, panels: Sequence[Panel], *, width: int = _WIDTH) -> str:
    """The picture; every panel `width` wide, its legend below."""
    legend = max(len(panel.curves) for panel in panels) * _LINE
    height = _HEAD + _PLOT + _AXIS + legend + 10
    step = _LEFT + width + _RIGHT + _GAP
    drawn = [_panel(panel, left=_LEFT + index * step, width=width) for index, panel in enumerate(panels)]
    whole = step * len(panels) - _GAP + 8
    return (
        tag(
            "svg",
            tag("style", Markup(_STYLE)),
            tag("text", title, class_="title", x=12, y=18),
            *drawn,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {whole} {height}",
            width=whole,
            height=height,
            role="img",
            aria_label=title,
        )
        + "\n"
    )


def _panel(panel: Panel, *, left: int, width: int) -> Markup:
    values = sorted({x for curve in panel.curves for x, _ in curve.points})
    highest = panel.y_top or max((y for curve in panel.curves for _, y in curve.points), default=1.0)
    steps = ticks(Scale(low=0, high=highest * 1.02), about=5)
    y = Scale(low=0, high=max(highest * 1.02, steps[-1]))
    x = Scale(low=math.log2(values[0]), high=math.log2(values[-1])) if values else Scale(low=0, high=1)

    def across(value: float) -> float:
        return left + 8 + (width - 16) * x(math.log2(value))

    def up(value: float) -> float:
        return _HEAD + _PLOT * (1 - y(value))

    shapes = [tag("text", panel.title, class_="panel", x=left, y=_HEAD - 10)]
    for mark in steps:
        shapes.append(tag("path", class_="grid", d=f"M{left} {number(up(mark))}h{width}"))
        shapes.append(tag("text", f"{mark:,g}", class_="quiet", x=left - 6, y=number(up(mark) + 4), text_anchor="end"))
    under = _HEAD + _PLOT + 15
    shapes += [
        tag("text", f"{value:g}", class_="quiet", x=number(across(value)), y=under, text_anchor="middle")
        for value in values
    ]
    shapes.append(
        tag("text", panel.x_label, class_="quiet", x=left + width // 2, y=_HEAD + _PLOT + 31, text_anchor="middle")
    )
    kinds = [f"curve c{at % _COLOURS}" + " dashed" * curve.dashed for at, curve in enumerate(panel.curves)]
    for kind, curve in sorted(zip(kinds, panel.curves, strict=True), key=lambda one: one[1].dashed):
        points = " ".join(f"{number(across(px))} {number(up(py))}" for px, py in curve.points)
        if points:
            shapes.append(tag("path", class_=kind, d=f"M{points}"))
    for index, (kind, curve) in enumerate(zip(kinds, panel.curves, strict=True)):
        below = _HEAD + _PLOT + _AXIS + _LINE * index + 12
        shapes.append(tag("path", class_=kind, d=f"M{left} {below - 4}h20"))
        shapes.append(tag("text", curve.label, x=left + 27, y=below))
    return join(*shapes)
