"""The simulation in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from fulltilt.bench.simulate.model import Fleet, Outcome
from fulltilt.bench.simulate.page import assumptions
from fulltilt.bench.simulate.rates import workloads
from fulltilt.bench.simulate.scenes import scenes

_PIPE_COLUMNS = 120
"""A pipe or a file has no width of its own."""


def show(result: Mapping[str, Any], fleet: Fleet, console: Console) -> None:
    """A table for each scene, as many side by side as there is room for; what was measured; what is assumed."""
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    works, sources = workloads(result)
    console.print(
        "Simulated from measured rates. Share: of the ideal, which is the number of GPUs × the limit of one.\n",
        soft_wrap=True,
    )
    console.print(Columns([_table(scene.title, scene.outcomes(works)) for scene in scenes(fleet)], equal=True))
    for source in sources:
        console.print(f"measured: {source.workload}: {source.figure}: {source.value}", soft_wrap=True, highlight=False)
    for what, value in assumptions(fleet):
        console.print(f"assumed: {what}: {value}", soft_wrap=True, highlight=False)


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for name in ("GPUs", "samples/s", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("saturated", no_wrap=True, min_width=len("decode cores"))
    for one in outcomes:
        table.add_row(f"{one.gpus}", f"{one.samples_per_second:,.0f}", f"{100 * one.efficiency:.0f} %", one.saturated)
    return table
