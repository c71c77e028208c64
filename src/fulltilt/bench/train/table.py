"""The result as a table, what was chosen, and a line for everything that fell short."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console

from fulltilt.bench.tables import console_or, figures_table, print_lines, summed_up
from fulltilt.bench.train.figures import Case, TrainBench


def show(found: TrainBench, console: Console | None = None) -> None:
    console = console_or(console)
    table = figures_table(
        "Training, batch on the device", "samples/s", "a step", "spread", "set up", "share", "target", ""
    )
    for workload, cases in groupby(found.cases, key=lambda case: case.workload):
        table.add_row(f"[bold]{found.workloads.get(workload, workload)}[/bold]")
        for case in cases:
            if case.samples_per_second is not None:
                table.add_row(*_row(case))
        table.add_section()
    console.print(table)
    print_lines(console, lines(found))


def lines(found: TrainBench) -> list[str]:
    """What the table can't say."""
    said = []
    for case in found.cases:
        for name, decision in case.notes.get("plan", {}).items():
            said.append(f"{case.workload}: {name}: {decision['value']} ({decision['reason']})")
    said += [f"{case.workload}: {case.title}: {case.problem}" for case in found.cases if case.problem]
    said += found.shortfalls()
    targets = [case.met for case in found.cases if case.at_least is not None]
    return said + summed_up(targets, found.seconds, found.problem)


def _row(case: Case) -> tuple[str, ...]:
    return (
        case.title,
        "–" if case.samples_per_second is None else f"{case.samples_per_second:,.0f}",
        "–" if case.step_seconds is None else f"{1e3 * case.step_seconds:.3g} ms",
        "–" if case.spread is None else f"{100 * case.spread:.1f} %",
        "–" if case.setup_seconds is None else f"{case.setup_seconds:.1f} s",
        "–" if case.share is None else f"{100 * case.share:.1f} %",
        "" if case.at_least is None else f"≥ {100 * case.at_least:g} %",
        "" if case.at_least is None else {True: "met", False: "missed", None: "?"}[case.met],
    )
