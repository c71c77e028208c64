"""The result as a table and a line for everything that fell short."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console

from fulltilt.bench.feed.figures import Case, FeedBench
from fulltilt.bench.tables import console_or, figures_table, print_lines, summed_up


def show(found: FeedBench, console: Console | None = None) -> None:
    console = console_or(console)
    table = figures_table(
        f"Feed, {found.material}", "samples/s", "of limit", "waiting", "CPU cores", "workers", "target", ""
    )
    for _, cases in groupby(found.cases, key=lambda case: case.part):
        for case in cases:
            if case.rate is not None:
                table.add_row(*_row(case))
        table.add_section()
    console.print(table)
    print_lines(console, lines(found))


def lines(found: FeedBench) -> list[str]:
    """What the table can't say."""
    said = [f"{case.part}: {case.title}: {case.rate.note}" for case in found.cases if case.rate and case.rate.note]
    said += [f"{case.part}: {case.title}: {case.problem}" for case in found.cases if case.problem]
    said += found.shortfalls()
    targets = [case.met for case in found.cases if case.targets]
    return said + summed_up(targets, found.seconds, found.problem)


def _row(case: Case) -> tuple[str, ...]:
    rate = case.rate
    assert rate is not None
    shares = [share for share in (case.share, case.of_best, case.of_own) if share is not None]
    against = _percent(shares[0] if shares else None) if case.times_loader is None else f"{case.times_loader:.3g}×"
    return (
        case.title,
        f"{rate.samples_per_second:,.0f}",
        against,
        _percent(rate.wait_share),
        "–" if rate.cpu_cores is None else f"{rate.cpu_cores:.1f}",
        "–" if rate.workers is None else str(rate.workers),
        ", ".join(_short(target.figure, target.at_least) for target in case.targets),
        "" if not case.targets else {True: "met", False: "missed", None: "?"}[case.met],
    )


def _short(figure: str, at_least: float) -> str:
    """A target in the units of its column."""
    if figure in ("share", "of_best", "of_own", "of_alone"):
        return f"≥ {100 * at_least:g} %"
    return f"≥ {at_least:g}×" if figure == "times_loader" else f"≥ {at_least:,.0f}/s"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
