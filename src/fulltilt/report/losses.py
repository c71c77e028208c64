"""Loss curves over each other: before and after, with the band that two runs of one script lie within."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fulltilt.diagnose.finding import LossCurves

from . import svg
from .chart import figure, value_axis
from .markup import Markup, tag
from .series import Run, runs
from .svg import Scale


def loss_chart(curves: LossCurves) -> Markup:
    """Nothing is hidden: where the curves are equal, the second covers the first, and the legend says so."""
    shown = [value for value in (*curves.before, *curves.after) if math.isfinite(value)]
    if not shown:
        return tag("p", "No loss could be read.", class_="note")
    low, high = min(shown), max(shown)
    room = 0.06 * (high - low) or 0.5
    y = Scale(low=low - room, high=high + room)
    x = Scale(low=0, high=max(len(curves.before), len(curves.after), 2) - 1)
    marks = svg.ticks(y)
    shapes = [svg.level(y(mark), class_="grid") for mark in marks]
    shapes += [_band(curves, x, y)] if curves.band else []
    shapes += [
        svg.line(_drawn(curves.before), x, y, class_="orange wide"),
        svg.line(_drawn(curves.after), x, y, class_="blue"),
    ]
    equal = curves.before == curves.after
    items = [
        tag("span", tag("i", class_="key orange"), "before", class_="item"),
        tag("span", tag("i", class_="key blue"), "after", class_="item"),
    ]
    if curves.band:
        items.append(tag("span", tag("i", class_="key box band-key"), "two runs as it is", class_="item"))
    lead = "equal to the last bit" if equal else f"largest difference {_difference(curves):.3g}"
    steps = [tag("span", "first step", class_="first"), tag("span", f"step {round(x.high) + 1}", class_="last")]
    plot = tag(
        "div",
        svg.canvas(*shapes, label="Losses of the first steps, before and after"),
        tag("div", *steps, class_="ends"),
        class_="curve",
    )
    return figure(
        "Loss of the first steps, same seed",
        tag("div", tag("span", lead, class_="lead"), *items, class_="legend"),
        tag("div", value_axis(y, marks), plot, class_="frame"),
        size="large",
    )


def _drawn(losses: Sequence[float]) -> list[Run]:
    """Broken where a loss is no number."""
    return runs([float(at) for at in range(len(losses))], losses)


def _difference(curves: LossCurves) -> float:
    both = zip(curves.before, curves.after, strict=False)
    return max((abs(a - b) for a, b in both if math.isfinite(a) and math.isfinite(b)), default=math.nan)


def _band(curves: LossCurves, x: Scale, y: Scale) -> Markup:
    """Around the losses before."""
    last = curves.band[-1]
    points = [
        (at, loss, curves.band[at] if at < len(curves.band) else last)
        for at, loss in enumerate(curves.before)
        if math.isfinite(loss)
    ]
    top = " ".join(f"{x.x(at)} {y.y(loss + width)}" for at, loss, width in points)
    bottom = " ".join(f"{x.x(at)} {y.y(loss - width)}" for at, loss, width in reversed(points))
    return tag("path", class_="band orange", d=f"M{top} {bottom}z")
