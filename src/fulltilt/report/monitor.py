"""The monitor's page: `fulltilt monitor --html`, live or from a recording."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt import __version__
from fulltilt.machine.sample import Sample
from fulltilt.monitor.summary import GpuSummary, Summary
from fulltilt.monitor.verdict import THRESHOLDS, VERDICTS, rule_text
from fulltilt.words import duration

from . import svg
from .columns import Columns
from .cpu import cpu_card
from .gpu import gpu_card, verdict_word
from .markup import Child, Markup, tag
from .page import card, document, table


def monitor_page(samples: Sequence[Sample], summary: Summary, *, title: str) -> str:
    """One HTML document that needs nothing beside itself.

    `summary` gives the figures, `samples` the charts; after a long watch these may be fewer than it counted.
    """
    columns = Columns(samples, len(summary.gpus))
    return document(
        f"{title} · fulltilt monitor",
        _heading(summary, columns, title),
        _nothing(summary),
        _overview(summary, columns) if len(summary.gpus) > 1 else None,
        *(gpu_card(gpu, columns) for gpu in summary.gpus),
        cpu_card(summary.cpu, summary.process, columns),
        _next_steps(summary),
        _rules() if summary.gpus else None,
        tag("footer", f"Written by fulltilt {__version__}. This file loads nothing from anywhere."),
    )


def _heading(summary: Summary, columns: Columns, title: str) -> Markup:
    facts = [_names(summary.gpus)] if summary.gpus else []
    if summary.samples:
        facts.append(duration(summary.duration_seconds))
    interval = columns.interval_seconds
    if len(columns.samples) < summary.samples:  # a long watch keeps fewer for its charts than it counted
        interval = summary.duration_seconds / summary.samples
    count = f"{summary.samples:,} sample{'' if summary.samples == 1 else 's'}"
    facts.append(count if interval is None else f"{count}, one every {svg.number(interval, digits=2)} s")
    if summary.samples and not columns.drawable:
        facts.append("too few for charts")
    return tag(
        "header",
        tag("p", "fulltilt monitor", class_="eyebrow"),
        tag("h1", title),
        tag("p", *(tag("span", fact) for fact in facts), class_="meta"),
    )


def _names(gpus: Sequence[GpuSummary]) -> str:
    """`2 × NVIDIA H200, 1 × NVIDIA A100`; the plain name of a single one."""
    names = [gpu.name or "unnamed GPU" for gpu in gpus]
    if len(names) == 1:
        return names[0]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _nothing(summary: Summary) -> Markup | None:
    if not summary.samples:
        return card(
            tag("h2", "No samples"), tag("p", "The recording ended before the first sample: there is nothing to show.")
        )
    if not summary.gpus:
        words = "No GPU was read, so there is no verdict; fulltilt env says why. The host's figures follow."
        return card(tag("h2", "No GPU"), tag("p", words))
    return None


def _overview(summary: Summary, columns: Columns) -> Markup:
    rows: list[list[Child]] = []
    for gpu in summary.gpus:
        link = tag("a", f"GPU {gpu.label}", href=f"#gpu-{gpu.label.replace(':', '-')}")
        flags = [flag.name for flag in gpu.flags] + (["lost"] if gpu.lost is not None else [])
        rows.append(
            [
                link,
                verdict_word(gpu),
                f"{gpu.util.mean:.1f} ± {gpu.util.std:.1f} %" if gpu.util is not None else "–",
                f"{gpu.sm.mean:.1f} %" if gpu.sm is not None else "–",
                _trace(gpu, columns),
                ", ".join(flags) or "–",
            ]
        )
    head = ["GPU", "Verdict", "Utilisation", "SM activity", "Utilisation over time", "Flags"]
    return card(tag("h2", "All GPUs"), table(head, rows, numeric=frozenset({2, 3})), label="All GPUs")


def _trace(gpu: GpuSummary, columns: Columns) -> Markup:
    values = [None if reading is None else reading.util for reading in columns.gpu(gpu.label)]
    if not columns.drawable:
        return Markup("–")
    series = columns.runs(values, max_points=300)
    shapes = (
        svg.area(series, columns.time, svg.PERCENT, class_="blue"),
        svg.band(series, columns.time, svg.PERCENT, class_="blue"),
        svg.line(series, columns.time, svg.PERCENT, class_="blue"),
    )
    return tag("div", svg.canvas(*shapes, label=f"Utilisation of GPU {gpu.label} over time"), class_="trace")


def _next_steps(summary: Summary) -> Markup | None:
    """Each step once, with the GPUs that it is for."""
    wanted: dict[str, list[str]] = {}
    for gpu in summary.gpus:
        wanted.setdefault(gpu.next_step, []).append(gpu.label)
    if not wanted:
        return None
    several = len(summary.gpus) > 1
    steps = []
    for step, labels in wanted.items():
        command, _, reason = step.partition("  (")
        words: Child = (
            tag("code", command) if command.startswith("fulltilt ") else f"{command[:1].upper()}{command[1:]}."
        )
        why = f" {reason.removesuffix(')')}" if reason else None
        who = tag("span", f"GPU {', '.join(labels)}: ") if several else None
        steps.append(tag("li", who, words, why))
    return card(tag("h2", "What to run next"), tag("ul", *steps, class_="next"), label="What to run next")


def _rules() -> Markup:
    """Every verdict's rule, in the order in which they are tried, and each flag's."""
    rows = [[rule.name, rule.text, THRESHOLDS[rule.name].source] for rule in VERDICTS]
    rows.append(["healthy", "no other rule fits", ""])
    quiet = f"GPU < {THRESHOLDS['quiet-gpu'].value:g} %"
    flags = [
        ["memory-full", rule_text("memory-full", ">"), THRESHOLDS["memory-full"].source],
        ["hot", f"{rule_text('hot', '≥')}, or clocks held down by heat", THRESHOLDS["hot"].source],
        ["cpu-bound", f"{quiet} while CPU > {THRESHOLDS['cpu-bound'].value:g} %", THRESHOLDS["cpu-bound"].source],
        [
            "cpu-bound",
            f"GPU < {THRESHOLDS['hungry-gpu'].value:g} % while one core ≥ {THRESHOLDS['one-core'].value:g} % and the"
            f" others < {THRESHOLDS['other-cores'].value:g} %: loading runs in a single process",
            THRESHOLDS["one-core"].source,
        ],
        ["io-bound", f"{quiet} while iowait > {THRESHOLDS['io-bound'].value:g} %", THRESHOLDS["io-bound"].source],
    ]
    often = (
        f"cpu-bound and io-bound need more than {THRESHOLDS['of-moments'].value:g} % of such moments, and such moments"
        f" {THRESHOLDS['of-time'].value:g} % of the time."
    )
    return card(
        tag(
            "details",
            tag("summary", "The rules"),
            tag("p", "The verdict is the first of these that fits; flags are raised beside it."),
            table(["Verdict", "Rule", "Where it comes from"], rows),
            table(["Flag", "Rule", "Where it comes from"], flags),
            tag("p", often, class_="note"),
        )
    )
