"""The simulation in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fulltilt.bench.simulate.model import Fleet
from fulltilt.bench.simulate.page import assumptions
from fulltilt.bench.simulate.rates import workloads
from fulltilt.bench.simulate.scenes import GPUS, scenes


def show(result: Mapping[str, Any], fleet: Fleet, console: Console) -> None:
    """A block for each scene: rates, shares of the limit, and what saturates."""
    if not console.is_terminal:
        console.width = 120  # a pipe or a file has no width of its own
    works, sources = workloads(result)
    table = Table(title="Simulated from measured rates", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("")
    for count in GPUS:
        table.add_column(f"{count} GPU{'s' * (count > 1)}", justify="right", no_wrap=True)
    for scene in scenes(fleet):
        found = scene.outcomes(works)
        table.add_row(scene.title, *(f"{one.samples_per_second:,.0f}/s" for one in found))
        table.add_row("  of as many limits", *(f"{100 * one.efficiency:.0f} %" for one in found))
        table.add_row("  saturated", *(one.saturated for one in found))
        table.add_section()
    console.print(table)
    for source in sources:
        console.print(f"measured: {source.workload}: {source.figure}: {source.value}", soft_wrap=True, highlight=False)
    for what, value in assumptions(fleet):
        console.print(f"assumed: {what}: {value}", soft_wrap=True, highlight=False)
