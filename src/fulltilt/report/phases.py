"""Phases of a step as bars: the average step as one bar, and all steps side by side, to point at and to zoom into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from statistics import median

from fulltilt import words
from fulltilt.diagnose.figures import PHASES, Figures
from fulltilt.measure.observation import Phase, Step

from . import svg
from .chart import figure
from .markup import Markup, bound, join, tag
from .svg import HEIGHT, WIDTH, Scale, number

MOST_COLUMNS = 400
"""More steps than that share columns: a page shows no more, and the file stays small."""
_CUT = 4.0
"""A column higher than so many times the median is cut, or one slow step would flatten all others."""
_LEAST_SHARE = 0.002


def phase_class(phase: Phase) -> str:
    return "p-" + phase.replace(" ", "-")


def average_bar(name: str, figures: Figures, *, longest: float) -> Markup:
    """The average step, as long as it takes beside the longest; what lies between the steps included."""
    whole = figures.whole
    pieces = [
        tag(
            "i",
            class_=phase_class(phase),
            style=f"flex-grow:{number(1e3 * share, digits=2)}",
            title=_told(phase, figures),
        )
        for phase in PHASES
        if whole and (share := figures.cost(phase) / whole) >= _LEAST_SHARE
    ]
    width = f"width:{number(100 * whole / longest, digits=2)}%" if longest else None
    bar = tag("div", tag("div", *pieces, class_="stack", style=width), class_="lane")
    return tag("div", tag("span", name, class_="what"), bar, tag("b", words.seconds(whole)), class_="average")


def _told(phase: Phase, figures: Figures) -> str:
    cost = figures.cost(phase)
    return f"{phase}: {words.seconds(cost)}, {words.percent(cost / figures.whole)}"


def key(figures: Figures, *others: Figures) -> Markup:
    """The phases with their shares of the average step; also those that show in the other bars alone."""
    items = [
        tag(
            "span",
            tag("i", class_=f"key box {phase_class(phase)}"),
            f"{phase} ",
            tag("b", bound(words.percent(figures.cost(phase) / figures.whole))),
            tag("small", bound(f" {words.seconds(figures.cost(phase))}")),
            class_="item",
        )
        for phase in PHASES
        if any(one.whole and one.cost(phase) / one.whole >= _LEAST_SHARE for one in (figures, *others))
    ]
    return tag("div", *items, class_="legend")


def timeline(steps: Sequence[Step]) -> Markup:
    """All steps side by side, each a column of its phases. The script (steps_script.py) points and zooms."""
    columns = _columns(steps)
    totals = [fsum(column.values()) for _, column in columns]
    highest = max(totals)
    top = min(highest, _CUT * median(totals)) or 1.0
    y = Scale(low=0, high=top)
    used = [phase for phase in PHASES if any(column.get(phase, 0.0) > 0 for _, column in columns)]
    drawn: dict[Phase, list[str]] = {phase: [] for phase in used}
    step = WIDTH / len(columns)
    for at, (_, column) in enumerate(columns):
        below = 0.0
        for phase in used:
            part = column.get(phase, 0.0)
            low, high = y(below) * HEIGHT, y(below + part) * HEIGHT
            below += part
            if high - low >= 0.05:
                drawn[phase].append(
                    f"M{number(at * step, digits=2)} {number(HEIGHT - low)}h{number(step * 0.94, digits=2)}"
                    f"v-{number(high - low)}h-{number(step * 0.94, digits=2)}z"
                )
    shapes = [tag("path", class_=f"column {phase_class(phase)}", d="".join(drawn[phase])) for phase in used]
    marks = svg.ticks(Scale(low=0, high=1e3 * top))
    labels = [tag("span", f"{mark:g}", style=f"bottom:{y.percent(mark / 1e3)}") for mark in marks]
    data = ";".join(
        ",".join([str(first), *(number(1e3 * column.get(phase, 0.0), digits=2) for phase in used)])
        for first, column in columns
    )
    plot = tag(
        "div",
        svg.canvas(*shapes, label=f"The phases of {len(steps)} steps, one column each"),
        tag(
            "div", tag("span", columns[0][0], class_="first"), tag("span", columns[-1][0], class_="last"), class_="ends"
        ),
        class_="steps",
        data_steps=data,
        data_phases=",".join(used),
    )
    said = "Point at a step to see its phases; drag across some to look closer." + (
        f" Columns are cut at {words.seconds(top)}; the longest is {words.seconds(highest)}." if highest > top else ""
    )
    each = len(steps) / len(columns)
    note = said + (f" Each column is the mean of about {each:.1f} steps." if each > 1 else "")
    lead = join(
        tag("span", f"{len(steps)} steps, milliseconds", class_="lead"),
        tag("span", class_="pointed"),
        tag("button", "all steps", type="button", class_="reset", hidden="hidden"),
    )
    frame = tag("div", tag("div", *labels, class_="y-axis", aria_hidden="true"), plot, class_="frame")
    return figure("Step by step", tag("div", lead, class_="legend"), frame, note=note, size="large")


def _columns(steps: Sequence[Step]) -> list[tuple[int, Mapping[Phase, float]]]:
    """(first step's number, mean seconds by phase) of each column."""
    each = -(-len(steps) // MOST_COLUMNS)
    columns: list[tuple[int, Mapping[Phase, float]]] = []
    for at in range(0, len(steps), each):
        some = steps[at : at + each]
        columns.append(
            (
                some[0].number,
                {phase: fsum(step.phases.get(phase, 0.0) for step in some) / len(some) for phase in PHASES},
            )
        )
    return columns
