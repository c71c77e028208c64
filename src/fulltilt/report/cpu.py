"""The host's part of the monitor's page: the CPU as a whole and core by core, and the watched process."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt.monitor.summary import CpuSummary, ProcessSummary
from fulltilt.words import GIB, gib

from .chart import Axes, Line, heat_chart, time_chart
from .columns import Columns
from .markup import Markup, tag
from .page import card, tiles


def cpu_card(summary: CpuSummary, process: ProcessSummary | None, columns: Columns) -> Markup | None:
    """Everything about the host; None where nothing was read."""
    drawn = (_mean_chart(summary, columns), _core_chart(columns)) if columns.drawable else ()
    charts = [chart for chart in drawn if chart is not None]
    figures = _figures(summary)
    if not figures and not charts and process is None:
        return None
    return card(
        tag("h2", "CPU"),
        tiles(figures) if figures else None,
        *_process(process),
        *charts,
        id_="cpu",
        label="CPU",
    )


def _figures(summary: CpuSummary) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if summary.util is not None:
        found.append(("All cores", f"{summary.util.mean:.1f} ± {summary.util.std:.1f}", "%"))
    if summary.busiest is not None:
        found.append(("Busiest core", f"{summary.busiest.mean:.1f}", "%"))
    if summary.iowait is not None:
        found.append(("iowait", f"{summary.iowait.mean:.1f}", "%"))
    if summary.cores is not None:
        found.append(("Cores", f"{summary.cores}", ""))
    if summary.ram_peak is not None:
        total = f"of {summary.ram_total / GIB:.0f} " if summary.ram_total else ""
        found.append(("Peak memory", gib(summary.ram_peak), f"{total}GiB"))
    if summary.disk_read_mean_mb_s is not None:
        found.append(("Mean disk reads", f"{summary.disk_read_mean_mb_s:.1f}", "MB/s"))
    return found


def _process(process: ProcessSummary | None) -> list[Markup]:
    if process is None:
        return []
    found: list[tuple[str, str, str]] = []
    if process.cpu_mean is not None:
        found.append(("Mean CPU", f"{process.cpu_mean / 100:.2f}", "cores"))
    if process.ram_peak is not None:
        found.append(("Peak memory", gib(process.ram_peak), "GiB"))
    if process.gpu_mem_peak is not None:
        found.append(("Peak GPU memory", gib(process.gpu_mem_peak), "GiB"))
    named = f"Process {process.pid}" + (f" ({process.name})" if process.name else "") + " and its descendants"
    return [tag("h3", named), *([tiles(found)] if found else [])]


def _mean_chart(summary: CpuSummary, columns: Columns) -> Markup | None:
    cpus = [sample.cpu for sample in columns.samples]
    lines = [
        Line(
            label=label,
            colour=colour,
            runs=columns.runs(values),
            value=f"{figures.mean:.1f} %",
            filled=colour == "blue",
        )
        for label, colour, figures, values in (
            ("All cores", "blue", summary.util, [cpu.util for cpu in cpus]),
            ("Busiest core", "orange", summary.busiest, [max(cpu.cores) if cpu.cores else None for cpu in cpus]),
            ("iowait", "olive", summary.iowait, [cpu.iowait for cpu in cpus]),
        )
        if figures is not None
    ]
    if not lines:
        return None
    return time_chart(
        "CPU over time",
        lines,
        Axes(time=columns.time),
        label="CPU, percent over time: " + ", ".join(f"{line.label} {line.value}" for line in lines),
        holes=columns.holes([cpu.util is not None or bool(cpu.cores) for cpu in cpus]),
        size="wide",
    )


def _core_chart(columns: Columns) -> Markup | None:
    rows = columns.heat()
    if not rows:
        return None
    return heat_chart("Each core over time", rows, columns.time, label=_told(rows), note=_note(rows, columns))


def _told(rows: Sequence[Sequence[float | None]]) -> str:
    means = [_row_mean(row) for row in rows]
    busiest = max(range(len(rows)), key=means.__getitem__)
    return f"Load of {len(rows)} cores over time; the busiest is core {busiest} with a mean of {means[busiest]:.0f} %"


def _row_mean(row: Sequence[float | None]) -> float:
    present = [value for value in row if value is not None]
    return sum(present) / len(present) if present else 0.0


def _note(rows: Sequence[Sequence[float | None]], columns: Columns) -> str | None:
    seconds = (columns.time.high - columns.time.low) / len(rows[0])
    if len(columns.samples) <= len(rows[0]):
        return None
    return f"Each cell is the mean of {seconds:.1f} s."
