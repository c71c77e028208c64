"""One GPU's charts: utilisation against the verdicts' thresholds, and what else was read, over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fulltilt.machine.sample import GpuSample
from fulltilt.measure.statistics import Figures
from fulltilt.monitor.summary import GpuSummary
from fulltilt.monitor.verdict import THRESHOLDS, VERDICTS, VerdictName
from fulltilt.words import GIB, gib

from . import svg
from .chart import Axes, Guide, Line, time_chart
from .columns import Columns
from .markup import Markup, bound, tag
from .series import histogram, slice_seconds
from .svg import PERCENT, Scale

_BINS = 20

UTILISATION_NOTE = (
    "Utilisation (the driver's utilization.gpu) only says that some kernel ran during that share of the time, not how"
    " much of the GPU it used. SM activity is the share of its multiprocessors that had work."
)
WITHOUT_SM_NOTE = "This recording has no SM activity: this GPU or its driver does not report it."


def gpu_charts(summary: GpuSummary, columns: Columns) -> Iterator[Markup]:
    """The main chart, then the others side by side; a chart without a figure is left out."""
    readings = columns.gpu(summary.label)
    drawing = _Drawing(
        summary=summary,
        columns=columns,
        readings=readings,
        holes=columns.holes([_says_something(reading) for reading in readings]),
    )
    if summary.util is not None:
        yield _main_chart(drawing, summary.util)
    others = (_inside_chart(drawing), _memory_chart(drawing), _temperature_chart(drawing), _power_chart(drawing))
    if any(others):
        yield tag("div", *others, class_="charts")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """What the charts of one GPU share."""

    summary: GpuSummary
    columns: Columns
    readings: Sequence[GpuSample | None]
    holes: Sequence[tuple[float, float]]

    def column(self, name: str) -> list[float | None]:
        return [None if reading is None else getattr(reading, name) for reading in self.readings]

    def line(self, name: str, label: str, colour: str, value: str, *, filled: bool = False, unit: float = 1) -> Line:
        values = [None if value is None else value / unit for value in self.column(name)]
        return Line(label=label, colour=colour, runs=self.columns.runs(values), value=value, filled=filled)

    def chart(self, title: str, lead: str, lines: Sequence[Line], axes: Axes, **more: Any) -> Markup:
        told = ", ".join(f"{line.label} {line.value}" for line in lines)
        label = f"{title} of GPU {self.summary.label} over time, {lead}: {told}"
        return time_chart(title, lines, axes, lead=lead, label=label, holes=self.holes, **more)


def _main_chart(drawing: _Drawing, util: Figures) -> Markup:
    summary, readings = drawing.summary, drawing.column("util")
    lines = [drawing.line("util", "Utilisation", "blue", f"{util.mean:.1f} %", filled=True)]
    if summary.sm is not None:
        lines.append(drawing.line("sm", "SM activity", "orange", f"{summary.sm.mean:.1f} %"))
    edges = [edge for edge, _ in _zones()]
    verdict = None if summary.verdict is None else summary.verdict.name
    return drawing.chart(
        "Utilisation and SM activity" if summary.sm is not None else "Utilisation",
        "mean",
        lines,
        Axes(time=drawing.columns.time, marks=[0, *(edge for edge in edges if edge >= 10), 100]),
        guides=[Guide(at=edge, label="") for edge in edges],
        size="large",
        note=" ".join(_notes(util, readings, lines, with_sm=summary.sm is not None)),
        beside=tag("div", _zone_names(util, verdict), _histogram(util, readings, edges), class_="beside"),
    )


def _zones() -> list[tuple[float, VerdictName]]:
    """Where a mean utilisation ends to give each verdict, from the bottom up."""
    of_mean = THRESHOLDS["starved"].figure
    rules = [(THRESHOLDS[rule.name], rule.name) for rule in VERDICTS]
    return sorted((threshold.value, name) for threshold, name in rules if threshold.figure == of_mean)


def _zone_names(util: Figures, verdict: VerdictName | None) -> Markup:
    """The mean ± standard deviation against the verdicts that a mean can give."""
    low = 0.0
    names = []
    for high, name in [*_zones(), (100.0, "healthy")]:
        here = "here" if name == verdict else None
        names.append(tag("span", name, class_=here, style=f"bottom:{PERCENT.percent((low + high) / 2)}"))
        low = high
    bottom, top = PERCENT(util.mean - util.std), PERCENT(util.mean + util.std)
    spread = f"bottom:{svg.number(100 * bottom, digits=2)}%;height:{svg.number(100 * (top - bottom), digits=2)}%"
    return tag(
        "div",
        tag("i", class_="spread", style=spread),
        tag("i", class_="middle", style=f"bottom:{PERCENT.percent(util.mean)}"),
        *names,
        tag("em", "mean ± std"),
        class_="zones",
        aria_hidden="true",
    )


def _histogram(util: Figures, readings: Sequence[float | None], edges: Sequence[float]) -> Markup | None:
    shares = histogram(readings, low=0, high=100, bins=_BINS)
    if not shares:
        return None
    most = max(range(_BINS), key=shares.__getitem__)
    width = 100 // _BINS
    label = (
        f"How the time is spread over utilisation: most of it, {shares[most]:.0%}, between {most * width} and"
        f" {(most + 1) * width} %; the mean is {util.mean:.1f} %"
    )
    picture = svg.canvas(
        *(svg.level(PERCENT(edge), class_="guide") for edge in edges),
        svg.bars(shares, class_="blue"),
        svg.level(PERCENT(util.mean), class_="mean"),
        label=label,
    )
    return tag("div", picture, tag("em", "share of time"), class_="histogram")


def _notes(figures: Figures, util: Sequence[float | None], lines: Sequence[Line], *, with_sm: bool) -> Iterator[str]:
    """What a reader has to know to read the main chart."""
    readings = [value for value in util if value is not None]
    near = sum(abs(value - figures.mean) <= 10 for value in readings) / max(len(readings), 1)
    yield bound(f"{100 * near:.0f} % of the readings lie within 10 points of the mean, the line across the bars.")
    if seconds := slice_seconds(lines[0].runs):
        yield f"Lines are means of {seconds:.3g} s; the shade reaches from the lowest reading to the highest."
    yield UTILISATION_NOTE
    if not with_sm:
        yield WITHOUT_SM_NOTE


def _inside_chart(drawing: _Drawing) -> Markup | None:
    summary = drawing.summary
    lines = [
        drawing.line(name, label, colour, f"{figures.mean:.1f} %")
        for name, label, colour, figures in (
            ("tensor", "Tensor cores", "green", summary.tensor),
            ("dram", "DRAM", "purple", summary.dram),
            ("occupancy", "Occupancy", "olive", summary.occupancy),
        )
        if figures is not None
    ]
    return drawing.chart("Inside the GPU", "mean", lines, Axes(time=drawing.columns.time, digits=1)) if lines else None


def _memory_chart(drawing: _Drawing) -> Markup | None:
    summary = drawing.summary
    if summary.mem_peak is None:
        return None
    line = drawing.line("mem_used", "Used", "blue", f"{gib(summary.mem_peak)} GiB", filled=True, unit=GIB)
    top = max(summary.mem_total or 0, summary.mem_peak, GIB) / GIB
    axes = Axes(time=drawing.columns.time, values=Scale(low=0, high=top), unit="GiB", digits=1)
    full = [Guide(at=top * THRESHOLDS["memory-full"].value / 100, label="memory-full")] if summary.mem_total else []
    return drawing.chart("Memory", "peak", [line], axes, guides=full)


def _temperature_chart(drawing: _Drawing) -> Markup | None:
    peak = drawing.summary.temp_peak
    if peak is None:
        return None
    line = drawing.line("temp", "GPU", "orange", f"{peak:.0f} °C")
    coolest = min((point.low for run in line.runs for point in run), default=20.0)
    scale = Scale(low=min(20.0, 10 * math.floor(coolest / 10)), high=max(100.0, peak))
    axes = Axes(time=drawing.columns.time, values=scale, unit="°C")
    return drawing.chart("Temperature", "peak", [line], axes, guides=[Guide(at=THRESHOLDS["hot"].value, label="hot")])


def _power_chart(drawing: _Drawing) -> Markup | None:
    summary = drawing.summary
    if summary.power_mean_w is None:
        return None
    line = drawing.line("power_w", "Drawn", "purple", f"{summary.power_mean_w:.0f} W")
    most = max((point.high for run in line.runs for point in run), default=0.0)
    scale = Scale(low=0, high=1.1 * max(most, summary.power_limit_w or 0, 1.0))
    axes = Axes(time=drawing.columns.time, values=scale, unit="W")
    limit = [Guide(at=summary.power_limit_w, label="limit")] if summary.power_limit_w else []
    note = f"Clocks were held down at times: {', '.join(summary.throttle)}." if summary.throttle else None
    return drawing.chart("Power", "mean", [line], axes, guides=limit, note=note)


def _says_something(reading: GpuSample | None) -> bool:
    return reading is not None and any(
        value is not None for value in (reading.util, reading.sm, reading.mem_used, reading.temp, reading.power_w)
    )
