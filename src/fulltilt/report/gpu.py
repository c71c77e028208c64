"""One GPU's part of the monitor's page: the verdict, its figures, its charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fulltilt.machine.sample import GpuSample
from fulltilt.measure.statistics import Figures
from fulltilt.monitor.summary import GpuSummary
from fulltilt.monitor.verdict import LIMITS, VERDICTS, FlagName, VerdictName

from . import svg
from .chart import Axes, Guide, Line, time_chart
from .columns import Columns
from .markup import Markup, tag
from .page import card, tiles
from .series import histogram, slice_seconds
from .svg import PERCENT, Scale

GIB = 2**30
_BINS = 20

UTILISATION_NOTE = (
    "Utilisation (the driver's utilization.gpu) only says that some kernel ran during that share of the time, not how"
    " much of the GPU it used. SM activity is the share of its multiprocessors that had work."
)
WITHOUT_SM_NOTE = "This recording has no SM activity: this GPU or its driver does not report it."

MEANINGS: dict[VerdictName, str] = {
    "idle": "Nearly nothing ran on this GPU.",
    "starved": "For most of the time no kernel ran: the GPU waits for the program that feeds it.",
    "bursty": "The GPU works, waits and works again; the mean alone hides it.",
    "underused": "The GPU is steadily at work, but not all of the time.",
    "small-kernels": "Some kernel nearly always runs, but fills less than half of the GPU: its pieces are small.",
    "healthy": "The GPU is kept at work.",
}
FLAG_MEANINGS: dict[FlagName, str] = {
    "memory-full": "There is little room left before it runs out of memory.",
    "hot": "A hot GPU lowers its clocks, and every step takes longer.",
    "cpu-bound": "While the GPU waits, the processor works: preparing the data takes too long there.",
    "io-bound": "While the GPU waits, the processor waits too, for the disk.",
}
TONES: dict[VerdictName | None, str] = {
    "idle": "quiet",
    "starved": "bad",
    "bursty": "warn",
    "underused": "warn",
    "small-kernels": "warn",
    "healthy": "good",
    None: "quiet",
}
# A shape for each tone as well, for eyes that don't see its colour: a tick, a triangle, a square, a ring.
_SHAPES = {
    "good": "M38 84 8 54 20 42 38 60 80 16 92 28z",
    "warn": "M50 8 96 92H4z",
    "bad": "M8 8H92V92H8z",
    "quiet": "M50 6A44 44 0 1 0 50 94 44 44 0 1 0 50 6zM50 24A26 26 0 1 1 50 76 26 26 0 1 1 50 24z",
}


def gpu_card(summary: GpuSummary, columns: Columns) -> Markup:
    """Everything about one GPU."""
    readings = columns.gpu(summary.label)
    holes = columns.holes([_says_something(reading) for reading in readings])
    flags = [
        tag("li", tag("b", flag.name), _bound(f"{flag.evidence}. {FLAG_MEANINGS[flag.name]}"), class_="flag")
        for flag in summary.flags
    ]
    if summary.lost is not None:
        at = next((sample.t for sample, gpu in zip(columns.samples, readings, strict=True) if gpu and gpu.lost), None)
        since = "" if at is None else f" at {svg.moment(at, span=columns.time.high - columns.time.low)}"
        flags.insert(0, tag("li", tag("b", "lost"), f"This GPU could not be read any more{since}: {summary.lost}."))
    main = _main_chart(summary, columns, readings, holes) if columns.drawable else None
    charts = _small_charts(summary, columns, readings, holes) if columns.drawable else []
    figures = _figures(summary)
    return card(
        verdict_block(summary),
        tag("ul", *flags, class_="flags") if flags else None,
        tiles(figures) if figures else None,
        main,
        tag("div", *charts, class_="charts") if charts else None,
        id_=f"gpu-{summary.label.replace(':', '-')}",
        label=f"GPU {summary.label}",
    )


def verdict_word(summary: GpuSummary) -> Markup:
    """The verdict with its shape and colour."""
    name = None if summary.verdict is None else summary.verdict.name
    shape = tag("path", d=_SHAPES[TONES[name]])
    icon = tag("svg", shape, xmlns="http://www.w3.org/2000/svg", viewBox="0 0 100 100", aria_hidden="true")
    return tag("span", icon, name or "no verdict", class_=f"word {TONES[name]}")


def verdict_block(summary: GpuSummary) -> Markup:
    """The headline: the word, what it means, the rule and the figures behind it."""
    what = " · ".join(part for part in (f"GPU {summary.label}", summary.name) if part)
    util, verdict = summary.util, summary.verdict
    mean = None
    if util is not None:
        value = tag("b", f"{util.mean:.1f} ± {util.std:.1f} %")
        mean = tag("div", tag("small", "mean utilisation ± standard deviation"), value, class_="mean")
    if verdict is None:
        why = tag("p", f"{_sentence(summary.why or 'utilisation was not read')}", class_="why")
        head = tag("div", tag("p", what, class_="what"), tag("h2", verdict_word(summary)))
        return tag("header", head, why, class_="verdict")
    return tag(
        "header",
        tag("div", tag("p", what, class_="what"), tag("h2", verdict_word(summary))),
        mean,
        tag("p", f"{MEANINGS[verdict.name]} {_sentence(verdict.evidence)}", class_="why"),
        tag("p", f"Rule: {verdict.rule}", class_="rule"),
        class_="verdict",
    )


def _figures(summary: GpuSummary) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if (util := summary.util) is not None:
        found.append(("p5 to p95", f"{util.p5:.0f} – {util.p95:.0f}", "%"))
        found.append(("Time below 10 %", f"{100 * util.below_10:.1f}", "%"))
    if summary.cycle_seconds is not None:
        found.append(("Cycle", f"{summary.cycle_seconds:.1f}", "s"))
    if (sm := summary.sm) is not None:
        found.append(("SM activity", f"{sm.mean:.1f} ± {sm.std:.1f}", "%"))
    if summary.mem_peak is not None:
        total = f"of {summary.mem_total / GIB:.0f} " if summary.mem_total else ""
        found.append(("Peak memory", f"{summary.mem_peak / GIB:.1f}", f"{total}GiB"))
    if summary.temp_peak is not None:
        found.append(("Peak temperature", f"{summary.temp_peak:.0f}", "°C"))
    if summary.power_mean_w is not None:
        limit = f"of {summary.power_limit_w:.0f} " if summary.power_limit_w else ""
        found.append(("Mean power", f"{summary.power_mean_w:.0f}", f"{limit}W"))
    return found


def _main_chart(
    summary: GpuSummary,
    columns: Columns,
    readings: Sequence[GpuSample | None],
    holes: Sequence[tuple[float, float]],
) -> Markup | None:
    util = _column(readings, "util")
    if summary.util is None:
        return None
    lines = [
        Line(
            label="Utilisation",
            colour="blue",
            runs=columns.runs(util),
            value=f"{summary.util.mean:.1f} %",
            filled=True,
        )
    ]
    if summary.sm is not None:
        sm = columns.runs(_column(readings, "sm"))
        lines.append(Line(label="SM activity", colour="orange", runs=sm, value=f"{summary.sm.mean:.1f} %"))
    edges = [edge for edge, _ in _zones()]
    return time_chart(
        "Utilisation and SM activity" if summary.sm is not None else "Utilisation",
        lines,
        Axes(time=columns.time, marks=[0, *(edge for edge in edges if edge >= 10), 100]),
        label=_described(f"GPU {summary.label} over time, mean", lines),
        guides=[Guide(at=edge, label="") for edge in edges],
        holes=holes,
        size="large",
        note=" ".join(_notes(summary.util, util, lines, with_sm=summary.sm is not None)),
        beside=tag(
            "div",
            _zone_names(summary.util, None if summary.verdict is None else summary.verdict.name),
            _histogram(summary, util, edges),
            class_="beside",
        ),
    )


def _zones() -> list[tuple[float, VerdictName]]:
    """Where a mean utilisation ends to give each verdict, from the bottom up."""
    of_mean = LIMITS["starved"].figure
    return sorted((LIMITS[rule.name].value, rule.name) for rule in VERDICTS if LIMITS[rule.name].figure == of_mean)


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


def _histogram(summary: GpuSummary, util: Sequence[float | None], edges: Sequence[float]) -> Markup | None:
    shares = histogram(util, low=0, high=100, bins=_BINS)
    if not shares or summary.util is None:
        return None
    most = max(range(_BINS), key=shares.__getitem__)
    width = 100 // _BINS
    label = (
        f"How the time is spread over utilisation: most of it, {shares[most]:.0%}, between {most * width} and"
        f" {(most + 1) * width} %; the mean is {summary.util.mean:.1f} %"
    )
    picture = svg.canvas(
        *(svg.level(PERCENT(edge), class_="guide") for edge in edges),
        svg.bars(shares, class_="blue"),
        svg.level(PERCENT(summary.util.mean), class_="mean"),
        label=label,
    )
    return tag("div", picture, tag("em", "share of time"), class_="histogram")


def _notes(figures: Figures, util: Sequence[float | None], lines: Sequence[Line], *, with_sm: bool) -> Iterator[str]:
    """What a reader has to know to read the main chart."""
    readings = [value for value in util if value is not None]
    near = sum(abs(value - figures.mean) <= 10 for value in readings) / max(len(readings), 1)
    yield _bound(f"{100 * near:.0f} % of the readings lie within 10 points of the mean, the line across the bars.")
    if seconds := slice_seconds(lines[0].runs):
        yield f"Lines are means of {seconds:.3g} s; the shade reaches from the lowest reading to the highest."
    yield UTILISATION_NOTE
    if not with_sm:
        yield WITHOUT_SM_NOTE


def _small_charts(
    summary: GpuSummary,
    columns: Columns,
    readings: Sequence[GpuSample | None],
    holes: Sequence[tuple[float, float]],
) -> list[Markup]:
    def line(name: str, label: str, colour: str, value: str) -> Line:
        return Line(label=label, colour=colour, runs=columns.runs(_column(readings, name)), value=value)

    gpm = [
        line(name, label, colour, f"{figures.mean:.1f} %")
        for name, label, colour, figures in (
            ("tensor", "Tensor cores", "green", summary.tensor),
            ("dram", "DRAM", "purple", summary.dram),
            ("occupancy", "Occupancy", "olive", summary.occupancy),
        )
        if figures is not None
    ]
    charts: list[tuple[str, str, list[Line], Axes, list[Guide]]] = []
    if gpm:
        charts.append(("Inside the GPU", "mean", gpm, Axes(time=columns.time, digits=1), []))
    if summary.mem_peak is not None:
        used = [None if value is None else value / GIB for value in _column(readings, "mem_used")]
        top = max(summary.mem_total or 0, summary.mem_peak) / GIB
        memory = Line(
            label="Used", colour="blue", runs=columns.runs(used), value=f"{_largest(used):.1f} GiB", filled=True
        )
        axes = Axes(time=columns.time, values=Scale(low=0, high=top), unit="GiB", digits=1)
        full = [Guide(at=top * LIMITS["memory-full"].value / 100, label="memory-full")] if summary.mem_total else []
        charts.append(("Memory", "peak", [memory], axes, full))
    if summary.temp_peak is not None:
        temps = line("temp", "GPU", "orange", f"{summary.temp_peak:.0f} °C")
        coolest = min((point.low for run in temps.runs for point in run), default=20.0)
        scale = Scale(low=min(20.0, 10 * math.floor(coolest / 10)), high=max(100.0, summary.temp_peak))
        axes = Axes(time=columns.time, values=scale, unit="°C")
        charts.append(("Temperature", "peak", [temps], axes, [Guide(at=LIMITS["hot"].value, label="hot")]))
    if summary.power_mean_w is not None:
        watts = line("power_w", "Drawn", "purple", f"{summary.power_mean_w:.0f} W")
        most = max(summary.power_limit_w or 0, _largest(_column(readings, "power_w")), 1.0)
        limit = [Guide(at=summary.power_limit_w, label="limit")] if summary.power_limit_w else []
        charts.append(
            ("Power", "mean", [watts], Axes(time=columns.time, values=Scale(low=0, high=1.1 * most), unit="W"), limit)
        )
    return [
        time_chart(
            title,
            lines,
            axes,
            guides=guides,
            holes=holes,
            label=_described(f"{title} of GPU {summary.label}, {lead}", lines),
            lead=lead,
        )
        for title, lead, lines, axes, guides in charts
    ]


def _column(readings: Sequence[GpuSample | None], name: str) -> list[float | None]:
    return [None if reading is None else getattr(reading, name) for reading in readings]


def _largest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None and math.isfinite(value)), default=0.0)


def _says_something(reading: GpuSample | None) -> bool:
    return reading is not None and any(
        value is not None for value in (reading.util, reading.sm, reading.mem_used, reading.temp, reading.power_w)
    )


def _described(title: str, lines: Sequence[Line]) -> str:
    return f"{title}: " + ", ".join(f"{line.label} {line.value}" for line in lines)


def _sentence(words: str) -> str:
    return _bound(f"{words[:1].upper()}{words[1:].rstrip('.')}.")


def _bound(words: str) -> str:
    """No line break between a number and its unit."""
    return words.replace(" %", "\u00a0%").replace(" °C", "\u00a0°C")
