"""The README's and the documents' figures and charts, made from the benchmarks' committed JSON, and tables of options,
made from the code.

    python scripts/tables.py            rewrite what stands between the two marks of each page, and the charts
    python scripts/tables.py --check    exit with 1 when something is not what the JSON says

A new result is one function, from its JSON to rows (rows.py), and one line in `SECTIONS`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rows
from claims import claims
from headline import headline
from options import keys, settings
from withheld import read

from fulltilt.bench.feed.chart import chart as feed_chart
from fulltilt.bench.guides.chart import chart as guides_chart
from fulltilt.bench.guides.claims import WORKLOADS
from fulltilt.bench.scaling.figures import SERIES
from fulltilt.bench.scaling.figures import chart as scaling_chart
from fulltilt.bench.scripts import chart as scripts_chart
from fulltilt.bench.simulate.page import chart as simulation_chart
from fulltilt.bench.simulate.page import page as simulation_page
from fulltilt.bench.tables import Row, markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"


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
    chart: str | None = None
    """Its picture, under docs."""
    trained: Callable[[dict[str, Any]], str] | None = None
    """What was trained, where the rows don't say."""


SECTIONS = (
    Section(
        title="The guides' workloads",
        result="h200/guides.json",
        command="fulltilt bench guides",
        columns=rows.GUIDE_COLUMNS,
        rows=rows.guides_rows,
        chart="images/guides.svg",
    ),
    Section(
        title="Video, a second run",
        result="h200/guides-video.json",
        command="fulltilt bench guides --only video/after,video/accelerate_tuned",
        columns=rows.GUIDE_COLUMNS,
        rows=rows.guides_rows,
    ),
    Section(
        title="The guides' workloads with the frameworks' defaults",
        result="h200/guides-defaults.json",
        command="fulltilt bench guides --only NAME/before,NAME/lightning,NAME/accelerate",
        columns=rows.GUIDE_COLUMNS,
        rows=rows.guides_rows,
    ),
    Section(
        title="What the recipes reach, at their small size",
        result="cpu-2-cores/quality.json",
        command="python benchmarks/quality.py",
        columns=rows.QUALITY_COLUMNS,
        rows=rows.quality_rows,
    ),
    Section(
        title="The monitor",
        result="h200/monitor.json",
        command="fulltilt bench monitor",
        columns=("", "measured", "wanted"),
        rows=rows.monitor_rows,
    ),
    Section(
        title="Augmentation",
        result="h200/augment.json",
        command="fulltilt bench augment",
        columns=("", "GPU", "wall", "ours is faster", "wanted"),
        rows=rows.augment_rows,
    ),
    Section(
        title="The feed",
        result="h200/feed.json",
        command="fulltilt bench feed",
        columns=("", "samples", "against", "wanted"),
        rows=rows.feed_rows,
        chart="images/feed.svg",
    ),
    Section(
        title="The number of workers, found automatically",
        result="cpu-2-cores/feed-grid.json",
        command="fulltilt bench feed --only grid",
        columns=("", "samples", "against", "wanted"),
        rows=rows.feed_rows,
    ),
    Section(
        title="Training",
        result="h200/train.json",
        command="fulltilt bench train",
        columns=("", "samples", "share", "wanted"),
        rows=rows.train_rows,
    ),
    Section(
        title="Cores, batch size, image size",
        result="h200/scaling.json",
        command="fulltilt bench scaling",
        columns=("", *SERIES.values()),
        rows=rows.scaling_rows,
        trained=rows.scaling_workloads,
        chart="images/scaling.svg",
    ),
    Section(
        title="Predicted gains beside measured ones (points of the step's time)",
        result="cpu-2-cores/predictions.json",
        command="fulltilt bench predictions tests/diagnose/scripts",
        columns=("", "cause", "predicted", "measured", "apart", "wanted"),
        rows=rows.predictions_rows,
    ),
    Section(
        title="The same on a GPU",
        result="h200/predictions.json",
        command="fulltilt bench predictions tests/diagnose/scripts/gpu --rounds 1",
        columns=("", "cause", "predicted", "measured", "apart", "wanted"),
        rows=rows.predictions_rows,
    ),
    Section(
        title="Ordinary scripts under `fulltilt run`",
        result="h200/scripts.json",
        command="fulltilt bench scripts",
        columns=("", "before", "after", "limit", "faster", "wanted", "what is left"),
        rows=rows.scripts_rows,
        chart="images/scripts.svg",
    ),
    Section(
        title="Other people's trainers and scripts under `fulltilt run`",
        result="h200/commands.json",
        command="fulltilt bench commands",
        columns=rows.COMMAND_COLUMNS,
        rows=rows.commands_rows,
    ),
    Section(
        title="Video",
        result="h200/video.json",
        command="fulltilt bench video",
        columns=("", "decoded", "against", "wanted"),
        rows=rows.video_rows,
    ),
    Section(
        title="CPU work beside the step",
        result="h200/assist.json",
        command="fulltilt bench assist",
        columns=("", "rate", "against", "wanted"),
        rows=rows.assist_rows,
    ),
    Section(
        title="What watching a script costs it",
        result="h200/observe.json",
        command="fulltilt bench observe",
        columns=("", "added", "allowed"),
        rows=rows.observe_rows,
    ),
)
CHARTS: dict[str, tuple[str, Callable[[dict[str, Any]], str | None]]] = {
    "docs/images/guides.svg": ("h200/guides.json", guides_chart),
    "docs/images/feed.svg": ("h200/feed.json", feed_chart),
    "docs/images/scripts.svg": ("h200/scripts.json", scripts_chart),
    "docs/images/scaling.svg": ("h200/scaling.json", scaling_chart),
    "docs/images/simulation.svg": ("h200/feed.json", simulation_chart),
}
"""Picture → the result that it is drawn from, and how."""
SIMULATED_FROM = "h200/feed.json"
QUALITY = "cpu-2-cores/quality.json"
BENCHMARKS, SCALING, GUIDES, CONFIGURATION, RUN = (
    ROOT / "docs" / f"{name}.md" for name in ("benchmarks", "scaling", "guides", "configuration", "run")
)
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def benchmarks_page(sections: Sequence[Section] = SECTIONS, results: Path = RESULTS) -> str:
    """Everything between the marks of docs/benchmarks.md: every committed result, with its picture."""
    parts = []
    for section in sections:
        if not (results / section.result).exists():
            continue
        result = read(results, section.result)
        dates = sorted({day[:10] for day in (result.get("dates") or {"": result.get("date", "")}).values()} - {""})
        picture = [f"![{section.title}]({section.chart})", ""] if section.chart is not None else []
        trained = [section.trained(result), ""] if section.trained is not None else []
        of = [f"Of {result['material']}.", ""] if "material" in result else []
        parts.append(
            "\n".join(
                [
                    f"## {section.title}",
                    "",
                    f"`{section.command}` on {_machine(result['machine'])}{', ' if dates else ''}{', '.join(dates)}: "
                    f"[{section.result}](../benchmarks/results/{section.result})",
                    "",
                    *picture,
                    *trained,
                    *of,
                    markdown(section.columns, section.rows(result)),
                    "",
                ]
            )
        )
    return "\n".join(parts)


def reached(recipe: str, results: Path = RESULTS) -> str:
    """Between the marks of a recipe's page: its metric, before and after."""
    if not (results / QUALITY).exists():
        return ""
    return markdown(rows.QUALITY_COLUMNS, rows.quality_rows(read(results, QUALITY), recipe)) + "\n"


def scaling_page(results: Path = RESULTS) -> str:
    """Between the marks of docs/scaling.md: measured curves where there are some, and the simulation."""
    curves = []
    if (results / "h200/scaling.json").exists():
        curves = [
            "### Curves, on one GPU\n",
            "![Training throughput](images/scaling.svg)\n",
            f"{rows.scaling_workloads(read(results, 'h200/scaling.json'))}\n",
            "The figures are in [benchmarks.md](benchmarks.md#cores-batch-size-image-size).\n",
        ]
    simulated = simulation_page(read(results, SIMULATED_FROM))
    return "\n".join([*curves, "![Share of the limit over GPUs](images/simulation.svg)\n", simulated])


def _machine(machine: dict[str, Any]) -> str:
    return f"{', '.join(machine['gpus']) or 'no GPU'}, {machine['cores']} cores"


def charts(results: Path = RESULTS) -> dict[Path, str]:
    """Every picture that a committed result makes."""
    drawn = {
        ROOT / name: draw(read(results, result))
        for name, (result, draw) in CHARTS.items()
        if (results / result).exists()
    }
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
    parser.add_argument("--readme", type=Path, help="this one alone, in place of every page and chart")
    wanted = parser.parse_args()
    new: dict[Path, str] = {}
    pages = [(wanted.readme, headline("en", RESULTS))]
    if wanted.readme is None:
        new = charts()
        pages = [
            (README, headline("en", RESULTS)),
            (CHINESE, headline("zh", RESULTS)),
            (BENCHMARKS, benchmarks_page()),
            (SCALING, scaling_page()),
            (GUIDES, claims(RESULTS)),
            (CONFIGURATION, keys()),
            (RUN, settings()),
            *((ROOT / "docs" / f"recipe-{name}.md", reached(name)) for name in WORKLOADS),
        ]
    for page, inside in pages:
        try:
            new[page] = replaced(page.read_text(encoding="utf-8"), inside)
        except ValueError as error:
            sys.exit(f"{page}: {error}")
    for file, content in new.items():
        if file.exists() and file.read_text(encoding="utf-8") == content:
            print(f"{file} is up to date")
        elif wanted.check:
            sys.exit(
                f"{file} does not show the committed figures, or options as they are; run python scripts/tables.py"
            )
        else:
            file.write_text(content, encoding="utf-8")
            print(f"{file} rewritten")


if __name__ == "__main__":
    main()
