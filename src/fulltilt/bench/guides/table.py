"""The result as a table, what the guides claim beside it, and a line for every target."""

from __future__ import annotations

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fulltilt.bench.guides.figures import Case, GuidesBench, in_words


def show(found: GuidesBench, console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        console.width = 130  # a pipe or a file has no width of its own
    table = Table(title="The guides' workloads, before and after", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("")
    for name in ("samples/s", "whole", "× before", "of limit", "GPU", "waits", "memory", "metric"):
        table.add_column(name, justify="right", no_wrap=True)
    for workload, cases in groupby(found.cases, key=lambda case: case.workload):
        table.add_row(f"[bold]{workload}: {found.workloads.get(workload, {}).get('title', '')}[/bold]")
        for case in cases:
            if case.answer.samples_per_second is not None:
                table.add_row(*row(case))
        table.add_section()
    console.print(table)
    for text in lines(found):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def row(case: Case) -> tuple[str, ...]:
    found, gpu = case.answer, case.gpu
    return (
        case.title,
        "–" if found.samples_per_second is None else f"{found.samples_per_second:,.4g}",
        "–" if found.overall_per_second is None else f"{found.overall_per_second:,.4g}",
        "–" if case.speed_up is None else f"{case.speed_up:.2f}",
        "–" if case.share is None else f"{100 * case.share:.1f} %",
        "–" if gpu is None else f"{gpu.mean:.0f} ± {gpu.std:.0f} %",
        "–" if found.wait_share is None else f"{100 * found.wait_share:.0f} %",
        "–" if found.peak_memory_bytes is None else f"{found.peak_memory_bytes / 2**30:.1f} GiB",
        "–" if found.metric is None else f"{found.metric:.3f}",
    )


def lines(found: GuidesBench) -> list[str]:
    """What the table can't say."""
    said = []
    for name, about in found.workloads.items():
        if claim := about.get("claim"):
            said.append(f"{name}: guide {claim['guides']} claims {claim['speed']}, GPU {claim['utilisation']}")
    said += [f"{case.workload}: {case.title}: {case.problem}" for case in found.cases if case.problem]
    said += [f"{case.workload}: {case.title}: {case.answer.note}" for case in found.cases if case.answer.note]
    for case, target in found.targets:
        word = {True: "met", False: "missed", None: "not measured"}[target.met]
        value = "" if target.found is None else f", found {in_words(target.figure, target.found)}"
        said.append(f"{word}: {case.workload}: {target}{value}")
    if found.targets:
        met = sum(target.met is True for _, target in found.targets)
        said.append(f"{met} of {len(found.targets)} targets met, in {found.seconds:.0f} s.")
    if found.problem:
        said.append(found.problem)
    return said
