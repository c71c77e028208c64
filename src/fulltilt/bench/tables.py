"""What the benchmarks' tables on the terminal have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def console_or(console: Console | None, *, columns: int = 110) -> Console:
    """The one that is given, or the terminal. A pipe or a file has no width of its own: it gets `columns`."""
    console = console or Console()
    if not console.is_terminal:
        console.width = columns
    return console


def figures_table(title: str, *figures: str) -> Table:
    """A name at the left, then figures, which line up at the right."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def summed_up(met: Sequence[bool | None], seconds: float, problem: str | None) -> list[str]:
    """How many targets were met, where there are any, and what came in between."""
    said = [f"{met.count(True)} of {len(met)} targets met, in {seconds:.0f} s."] if met else []
    return [*said, problem] if problem else said


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """As they stand, however long."""
    for text in lines:
        console.print(text, soft_wrap=True, markup=False, highlight=False)
