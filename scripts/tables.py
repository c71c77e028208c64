"""The README's figures and charts, made from the benchmarks' committed JSON.

    python scripts/tables.py            rewrite the block between the two marks in README.md, and the charts
    python scripts/tables.py --check    exit with 1 when something is not what the JSON says

A new result is one function, from its JSON to rows, and one line in `SECTIONS`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulltilt.bench.augment.figures import Bound
from fulltilt.bench.augment.table import times
from fulltilt.bench.feed.chart import chart
from fulltilt.bench.feed.figures import Figure, in_words
from fulltilt.bench.monitor import BUSY_SM_PERCENT, IDLE_SM_PERCENT

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One result file and the table that shows it."""

    title: str
    result: str
    """Under benchmarks/results."""
    command: str
    """What writes the file."""
    columns: Row
    rows: Callable[[dict[str, Any]], Sequence[Row]]


def monitor_rows(result: dict[str, Any]) -> list[Row]:
    costs: list[Row] = [
        (
            f"CPU of the monitor, a sample every {cost['interval_seconds']:g} s"
            + (", live view" if cost["live_view"] else ", no view"),
            f"{cost['core_percent']:.2f} % of one core",
            f"< {cost['target_percent']:g} %",
        )
        for cost in result["costs"]
    ]
    loads = {
        "idle": ("an idle card", f"< {IDLE_SM_PERCENT:g} %"),
        "fed": ("one bf16 matrix product after another", f"> {BUSY_SM_PERCENT:g} %"),
    }
    readings: list[Row] = [
        (f"SM activity read from {loads[one['load']][0]}", f"{one['sm']:.1f} %", loads[one["load"]][1])
        for one in result["readings"]
    ]
    return costs + readings


def augment_rows(result: dict[str, Any]) -> list[Row]:
    def ms(one: dict[str, Any], figure: str) -> str:
        return f"{one[figure]:.3f} ms" if figure in one else ""

    ours: list[Row] = [
        (
            f"fulltilt, {case['title']}",
            ms(case, "gpu_ms"),
            ms(case, "wall_ms"),
            "",
            ", ".join(
                str(Bound(figure=t["figure"], limit=t.get("at_least", t.get("at_most")), at_least="at_least" in t))
                for t in case.get("target", ())
            ),
        )
        for case in result["cases"]
    ]
    others: list[Row] = [
        (
            peer["name"] + ("" if peer["masks"] or "images only" in peer["name"] else " (no masks)"),
            ms(peer, "gpu_ms"),
            ms(peer, "wall_ms"),
            f"{times(peer['speedup'])}×",
            "",
        )
        for peer in result["peers"]
        if "speedup" in peer
    ]
    return ours + others


def feed_rows(result: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for case in result["cases"]:
        if "samples_per_second" not in case or (case["part"] == "grid" and "target" not in case):
            continue  # of a grid's many settings, only what is compared with the best of them
        figures: tuple[Figure, ...] = ("share", "times_loader", "of_best", "of_own", "of_alone")
        against = ", ".join(in_words(name, case[name]) for name in figures if name in case)
        wanted = ", ".join(f"≥ {in_words(target['figure'], target['at_least'])}" for target in case.get("target", ()))
        rows.append((case["title"], f"{case['samples_per_second']:,.0f}/s", against, wanted))
    return rows


def train_rows(result: dict[str, Any]) -> list[Row]:
    titles = {(case["workload"], case["key"]): case["title"] for case in result["cases"]}
    rows: list[Row] = []
    for case in result["cases"]:
        if "samples_per_second" not in case:
            continue
        against = titles.get((case["workload"], case.get("against")), "the fastest by hand")
        share, wanted = case.get("share"), case.get("at_least")
        rows.append(
            (
                f"{result['workloads'][case['workload']]}: {case['title']}",
                f"{case['samples_per_second']:,.0f}/s",
                "" if share is None else f"{_share(share)} of {against}",
                "" if wanted is None else f"≥ {_share(wanted)}",
            )
        )
    return rows


def _share(value: float) -> str:
    return f"{value:.3g} times" if value >= 2 else f"{100 * value:.3g} %"


SECTIONS = (
    Section(
        title="The monitor",
        result="h200/monitor.json",
        command="fulltilt bench monitor",
        columns=("", "measured", "wanted"),
        rows=monitor_rows,
    ),
    Section(
        title="Augmentation",
        result="h200/augment.json",
        command="fulltilt bench augment",
        columns=("", "GPU", "wall", "ours is faster", "wanted"),
        rows=augment_rows,
    ),
    Section(
        title="The feed",
        result="h200/feed.json",
        command="fulltilt bench feed",
        columns=("", "samples", "against", "wanted"),
        rows=feed_rows,
    ),
    Section(
        title="Workers, found by itself",
        result="cpu-2-cores/feed-grid.json",
        command="fulltilt bench feed --only grid",
        columns=("", "samples", "against", "wanted"),
        rows=feed_rows,
    ),
    Section(
        title="Training",
        result="h200/train.json",
        command="fulltilt bench train",
        columns=("", "samples", "share", "wanted"),
        rows=train_rows,
    ),
)
CHARTS = {"docs/images/feed.svg": ("h200/feed.json", chart)}
"""Picture → the result that it is drawn from, and how."""


def block(sections: Sequence[Section] = SECTIONS, results: Path = ROOT / "benchmarks" / "results") -> str:
    """Everything between the marks. What has no result yet has no table."""
    measured = [section for section in sections if (results / section.result).exists()]
    return "\n".join(_section(section, json.loads((results / section.result).read_text())) for section in measured)


def _section(section: Section, result: dict[str, Any]) -> str:
    table = [section.columns, ("---",) * len(section.columns), *section.rows(result)]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    file = f"benchmarks/results/{section.result}"
    source = f"`{section.command}` on {_machine(result['machine'])}: [{file}]({file})"
    return "\n".join([f"**{section.title}.** {source}", "", *lines, ""])


def _machine(machine: dict[str, Any]) -> str:
    return f"{', '.join(machine['gpus']) or 'no GPU'}, {machine['cores']} cores"


def charts(results: Path = ROOT / "benchmarks" / "results") -> dict[Path, str]:
    """Every picture that a committed result makes."""
    measured = {name: results / result for name, (result, _) in CHARTS.items() if (results / result).exists()}
    drawn = {ROOT / name: CHARTS[name][1](json.loads(file.read_text())) for name, file in measured.items()}
    return {file: picture for file, picture in drawn.items() if picture is not None}


def replaced(text: str, inside: str) -> str:
    """`text` with what stands between the marks replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"expected one {BEGIN} and, after it, one {END}")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{inside}{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when something would change")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    wanted = parser.parse_args()
    text = wanted.readme.read_text(encoding="utf-8")
    try:
        new = {wanted.readme: replaced(text, block()), **charts()}
    except ValueError as error:
        sys.exit(f"{wanted.readme}: {error}")
    for file, content in new.items():
        if file.exists() and file.read_text(encoding="utf-8") == content:
            print(f"{file} is up to date")
        elif wanted.check:
            sys.exit(f"{file} does not show the committed figures; run python scripts/tables.py")
        else:
            file.write_text(content, encoding="utf-8")
            print(f"{file} rewritten")


if __name__ == "__main__":
    main()
