"""The result as a table, and a line for every target."""

from __future__ import annotations

from rich.console import Console

from fulltilt.bench.assist.figures import AssistBench
from fulltilt.bench.tables import console_or, figures_table, print_lines
from fulltilt.bench.target import target_lines


def show(found: AssistBench, console: Console | None = None) -> None:
    console = console_or(console)
    table = figures_table(found.title, "samples/s", "a step", "spread", "share")
    for case in found.cases:
        if case.samples_per_second is not None and case.step_seconds is not None:
            table.add_row(
                case.title,
                f"{case.samples_per_second:,.0f}",
                f"{1e3 * case.step_seconds:.3g} ms",
                "–" if case.spread is None else f"{100 * case.spread:.1f} %",
                "–" if case.share is None else f"{100 * case.share:.1f} %",
            )
    if found.cases:
        console.print(table)
    print_lines(console, lines(found))


def lines(found: AssistBench) -> list[str]:
    """What the table can't say."""
    said: list[str] = []
    if (tasks := found.tasks) is not None:
        said.append(
            f"{tasks.ours_per_second:,.0f} trivial tasks/s with {tasks.workers} threads; "
            f"concurrent.futures {tasks.theirs_per_second:,.0f}"
        )
    if (many := found.many) is not None:
        said.append(
            f"{many.tasks:,} tasks in {many.seconds:.1f} s; memory grew by {many.grown_bytes / (1 << 20):.1f} MiB"
        )
    if found.balance is not None:
        said += found.balance.lines()
    for case in found.cases:
        if case.problem:
            said.append(f"{case.title}: {case.problem}")
        if case.notes.get("on_device"):
            said.append(f"{case.title}: {', '.join(case.notes['on_device'])} on the device: {case.notes['why']}")
    said += target_lines(found.targets)
    if found.problem:
        said.append(found.problem)
    return said
