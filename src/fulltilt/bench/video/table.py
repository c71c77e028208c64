"""The result as a table, and a line for every target."""

from __future__ import annotations

from rich.console import Console

from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import target_lines
from fulltilt.bench.video.figures import VideoBench


def show(found: VideoBench, console: Console | None = None) -> None:
    console = console_or(console)
    table = figures_table(found.video, "per second", "times", "decoded per frame")
    for case in found.cases:
        if case.per_second is not None:
            times = "" if case.times is None else f"{case.times:.2f}"
            decoded = case.notes.get("decoded_per_frame")
            rate = f"{case.per_second:,.{0 if case.per_second >= 10 else 1}f} {case.unit}"
            table.add_row(case.title, rate, times, "" if decoded is None else f"{decoded:.2f}")
    console.print(table)
    print_lines(console, lines(found))


def lines(found: VideoBench) -> list[str]:
    """What the table can't say."""
    texts = [f"{case.title}: {case.problem}" for case in found.cases if case.problem]
    texts += target_lines(found.targets)
    if found.problem:
        texts.append(found.problem)
    return texts
