"""Charts over time: an SVG of shapes with the words around it as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import svg
from .markup import Child, Markup, tag
from .series import Run
from .svg import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a chart."""

    label: str
    colour: str
    """A colour of the palette in style.py: blue, orange, green, purple, olive."""
    runs: Sequence[Run]
    value: str
    """What the legend shows while nothing is pointed at, with its unit."""
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A threshold, drawn across."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the charts of one page share: the time axis; and what this one has: its values."""

    time: Scale
    values: Scale = svg.PERCENT
    unit: str = "%"
    digits: int = 0
    """Decimals of a value that is pointed at."""
    marks: Sequence[float] | None = None
    """Where the value axis is labelled; round values if None."""


def time_chart(
    title: str,
    lines: Sequence[Line],
    axes: Axes,
    *,
    label: str,
    guides: Sequence[Guide] = (),
    holes: Sequence[tuple[float, float]] = (),
    lead: str = "mean",
    size: str = "small",
    note: Child = None,
    beside: Child = None,
) -> Markup:
    """Lines over time.

    `lead` says what the legend's values are; `beside` stands to the right of the plot and shares its value axis.
    """
    x, y = axes.time, axes.values
    marks = svg.ticks(y) if axes.marks is None else axes.marks
    shapes = [svg.stretch(start, end, x, class_="hole") for start, end in holes]
    shapes += [svg.level(y(mark), class_="grid") for mark in marks]
    shapes += [svg.area(item.runs, x, y, class_=item.colour) for item in lines if item.filled]
    shapes += [shape for item in lines if (shape := svg.band(item.runs, x, y, class_=item.colour))]
    shapes += [svg.level(y(guide.at), class_="guide") for guide in guides]
    # The first series is the one that the chart is about: it is drawn last, on top.
    shapes += [svg.line(item.runs, x, y, class_=item.colour) for item in reversed(lines)]
    named = [
        tag("span", guide.label, class_="guide-label", style=f"bottom:{y.percent(guide.at)}")
        for guide in guides
        if guide.label
    ]
    plot = tag(
        "div",
        svg.canvas(*shapes, label=label),
        *named,
        time_axis(x),
        class_="plot",
        data_low=svg.number(y.low, digits=3),
        data_high=svg.number(y.high, digits=3),
        data_unit=axes.unit,
        data_digits=axes.digits,
        **_time_data(x),
    )
    return figure(
        title,
        legend(lines, lead=lead, holes=bool(holes) and size != "small"),
        tag("div", value_axis(y, marks), plot, beside, class_="frame"),
        note=note,
        size=size,
    )


def heat_chart(title: str, rows: Sequence[Sequence[float | None]], time: Scale, *, label: str, note: Child) -> Markup:
    """Rows × time, coloured by percent; the rows are numbered."""
    every = max(1, -(-len(rows) // 8))
    numbers = [
        tag("span", row, style=f"bottom:{svg.number(100 * (1 - (row + 0.5) / len(rows)), digits=2)}%")
        for row in range(0, len(rows), every)
    ]
    scale = [tag("i", class_=f"key h{heat}") for heat in range(svg.HEAT_LEVELS)]
    key = tag("span", "0 % ", *scale, " 100 %", tag("b", class_="value", data_heat=""), class_="item")
    plot = tag("div", svg.heat_map(rows, label=label), time_axis(time), class_="plot heat-map", **_time_data(time))
    return figure(
        title,
        tag("div", key, class_="legend"),
        tag("div", tag("div", *numbers, class_="y-axis", aria_hidden="true"), plot, class_="frame"),
        note=note,
        size="heat",
        style=f"--rows:{len(rows)}",
    )


def figure(
    title: str, legend: Child, frame: Child, *, note: Child = None, size: str, style: str | None = None
) -> Markup:
    """A chart with its heading above and its note below."""
    heading = tag("figcaption", tag("h4", title), legend)
    below = tag("p", note, class_="note") if note else None
    return tag("figure", heading, frame, below, class_=f"chart {size}", style=style)


def legend(lines: Sequence[Line], *, lead: str, holes: bool) -> Markup:
    """Names and values; the script swaps the values for those pointed at, and the lead for the moment."""
    items = [
        tag(
            "span",
            tag("i", class_=f"key {item.colour}"),
            f"{item.label} ",
            tag("b", item.value, class_="value", data_colour=item.colour),
            class_="item",
        )
        for item in lines
    ]
    if holes:
        items.append(tag("span", tag("i", class_="key nothing"), "no reading", class_="item"))
    return tag("div", tag("span", lead, class_="lead"), *items, class_="legend")


def value_axis(y: Scale, marks: Sequence[float]) -> Markup:
    """Labels at the left; the unit is in the legend."""
    labels = (tag("span", f"{mark:g}", style=f"bottom:{y.percent(mark)}") for mark in marks)
    return tag("div", *labels, class_="y-axis", aria_hidden="true")


def time_axis(x: Scale) -> Markup:
    """Labels below; every second one goes where the page is narrow."""
    span = x.high - x.low
    labels = (
        tag("span", svg.moment(at, span=span), class_=_edge(x(at)), style=f"left:{x.percent(at)}")
        for at in svg.time_ticks(x)
    )
    return tag("div", *labels, class_="x-axis", aria_hidden="true")


def _edge(part: float) -> str | None:
    """A label at either end stays inside the plot, clear of what stands beside it."""
    return "first" if part < 0.03 else "last" if part > 0.97 else None


def _time_data(x: Scale) -> dict[str, str]:
    return {"data_start": svg.number(x.low, digits=3), "data_end": svg.number(x.high, digits=3)}
