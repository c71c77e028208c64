"""The curves as tables, in the terminal."""

from __future__ import annotations

from rich.console import Console

from fulltilt.bench.scaling.figures import PARTS, SERIES, TITLES, ScalingBench, present, rows
from fulltilt.bench.tables import console_or, figures_table


def show(found: ScalingBench, console: Console | None = None) -> None:
    console = console_or(console)
    flat = found.to_json()
    for part in PARTS:
        cases = [case for case in flat["cases"] if case["part"] == part]
        if not cases:
            continue
        series = (SERIES[name] for name in present(cases))
        table = figures_table(f"{TITLES[part]}: {found.workloads[part]}", *series, name=TITLES[part].lower())
        for row in rows(flat, part):
            table.add_row(*row)
        console.print(table)
    for point in found.cases:
        if point.problem:
            console.print(f"{point.part} {point.x}, {SERIES[point.series]}: {point.problem}", markup=False)
    if found.problem:
        console.print(found.problem, soft_wrap=True)
