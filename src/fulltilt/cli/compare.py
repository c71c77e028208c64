"""`fulltilt compare A.json B.json`: two diagnoses or runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fulltilt.diagnose.compare import Comparison


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A.json", help="A file that --json wrote: before.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another: after.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two diagnoses of a script: rates, limits, phases, findings.

    Of what `fulltilt run` wrote, the run with its plan is taken.
    """
    from fulltilt.diagnose.compare import compared
    from fulltilt.diagnose.serial import read

    result = compared(read(first), read(second))
    if as_json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    names = (first.name, second.name) if first.name != second.name else (str(first), str(second))
    console.print(table(result, *names))
    for title, causes in (("gone", result.gone), ("new", result.new)):
        for cause in causes:
            console.print(f"  {title:<5} {cause}")


def table(result: Comparison, first: str, second: str) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE, title_justify="left")
    shown.add_column("")
    for name, label in zip((first, second), result.labels, strict=True):
        shown.add_column(f"{name}\n{label}", justify="right")
    shown.add_column("change", justify="right", vertical="bottom")
    for row in result.rows:
        shown.add_row(row.name, row.shown[0], row.shown[1], row.change or "")
    return shown
