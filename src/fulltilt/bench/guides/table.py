"""The result as a table, what the guides claim beside it, and a line for every target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fulltilt.bench.guides.figures import ANOTHER_RUN, Case, GuidesBench, in_words
from fulltilt.bench.tables import console_or, print_lines, summed_up

Row = tuple[str, ...]
_COLUMNS = ("", "samples/s", "whole", "× before", "of limit", "GPU", "waits", "memory", "metric")
_ABSENT = "–"


def show(found: GuidesBench, console: Console | None = None) -> None:
    console = console_or(console, columns=130)
    for workload, cases in groupby(found.cases, key=lambda case: case.workload):
        rows = [row(case) for case in cases if case.answer.samples_per_second is not None]
        if rows:
            title = found.workloads.get(workload, {}).get("title", "")
            console.print(f"\n[bold]{workload}: {title}[/bold]", soft_wrap=True, highlight=False)
            console.print(_table(rows))
    print_lines(console, lines(found))


def _table(rows: Sequence[Row]) -> Table:
    """Without the columns that nothing was measured for: a terminal is narrow."""
    kept = [at for at, column in enumerate(zip(*rows, strict=True)) if any(cell != _ABSENT for cell in column)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for at in kept:
        table.add_column(_COLUMNS[at], justify="right" if at else "left", no_wrap=bool(at))
    for cells in rows:
        table.add_row(*(cells[at] for at in kept))
    return table


def row(case: Case) -> Row:
    found, gpu = case.answer, case.gpu
    return (
        case.title + (ANOTHER_RUN if case.another_run else ""),
        _rate(found.samples_per_second),
        _rate(found.overall_per_second),
        _ABSENT if case.speed_up is None else f"{case.speed_up:.2f}",
        _ABSENT if case.share is None else f"{100 * case.share:.1f} %",
        _ABSENT if gpu is None else f"{gpu.mean:.0f} ± {gpu.std:.0f} %",
        _ABSENT if found.wait_share is None else f"{100 * found.wait_share:.0f} %",
        _ABSENT if found.peak_memory_bytes is None else f"{found.peak_memory_bytes / 2**30:.1f} GiB",
        _ABSENT if found.metric is None else f"{found.metric:.3f}",
    )


def _rate(value: float | None) -> str:
    if value is None:
        return _ABSENT
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def lines(found: GuidesBench) -> list[str]:
    """What the table can't say."""
    said = []
    for name, about in found.workloads.items():
        if claim := about.get("claim"):
            said.append(f"{name}: guide {claim['guides']} claims {claim['speed']}, GPU {claim['utilisation']}")
    for case in found.cases:
        if case.problem:
            said.append(f"{case.workload}: {case.title}: {case.problem}")
            said += [f"    {line}" for line in case.answer.trace]
    said += [f"{case.workload}: {case.title}: {case.answer.note}" for case in found.cases if case.answer.note]
    for case, target in found.targets:
        word = {True: "met", False: "missed", None: "not measured"}[target.met]
        value = "" if target.found is None else f", found {in_words(target.figure, target.found)}"
        said.append(f"{word}: {case.workload}: {target}{value}")
    return said + summed_up([target.met for _, target in found.targets], found.seconds, found.problem)
