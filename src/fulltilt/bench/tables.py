"""What the benchmarks' tables have in common, on the terminal and in the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Row = tuple[str, ...]


def console_or(console: Console | None, *, columns: int = 110) -> Console:
    """The one that is given, or the terminal. A pipe or a file has no width of its own: it gets `columns`."""
    console = console or Console()
    if not console.is_terminal:
        console.width = columns
    return console


def figures_table(title: str | None, *figures: str, name: str = "") -> Table:
    """A name at the left, then figures, which line up at the right."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column(name)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """As they stand, however long."""
    for text in lines:
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def markdown(columns: Row, rows: Sequence[Row]) -> str:
    """A table of a document."""
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
