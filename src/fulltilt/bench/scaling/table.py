"""The curves as tables, in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fulltilt.bench.scaling.figures import PARTS, SERIES, TITLES, ScalingBench, present, rows
from fulltilt.bench.tables import console_or


def show(found: ScalingBench, console: Console | None = None) -> None:
    console = console_or(console)
    flat = found.to_json()
    for part in PARTS:
        cases = [case for case in flat["cases"] if case["part"] == part]
        if not cases:
            continue
        table = Table(title=f"{TITLES[part]}: {found.workloads[part]}", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
        for name in (TITLES[part].lower(), *(SERIES[series] for series in present(cases))):
            table.add_column(name, justify="right")
        for row in rows(flat, part):
            table.add_row(*row)
        console.print(table)
    for point in found.cases:
        if point.problem:
            console.print(f"{point.part} {point.x}, {SERIES[point.series]}: {point.problem}", markup=False)
    if found.problem:
        console.print(found.problem, soft_wrap=True)
