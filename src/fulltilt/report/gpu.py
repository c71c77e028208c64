"""One GPU's part of the monitor's page: the verdict with its reasons, the flags, the figures."""

from __future__ import annotations

from fulltilt.monitor.summary import GpuSummary
from fulltilt.monitor.verdict import FlagName, VerdictName
from fulltilt.words import GIB, gib

from . import svg
from .columns import Columns
from .gpu_charts import gpu_charts
from .markup import Markup, bound, tag
from .page import card, tiles

MEANINGS: dict[VerdictName, str] = {
    "idle": "Nearly nothing ran on this GPU.",
    "starved": "For most of the time no kernel ran: the GPU waits for the program that feeds it.",
    "bursty": "The GPU works, waits and works again; the mean alone hides it.",
    "underused": "The GPU is steadily at work, but not all of the time.",
    "small-kernels": "Some kernel nearly always runs, but over half of the GPU stays empty: the kernels are small.",
    "healthy": "The GPU is kept at work.",
}
FLAG_MEANINGS: dict[FlagName, str] = {
    "memory-full": "There is little room left before it runs out of memory.",
    "hot": "A hot GPU lowers its clocks, and every step takes longer.",
    "cpu-bound": "While the GPU waits, the CPU works: preparing the data takes too long there.",
    "io-bound": "While the GPU waits, the CPU waits too, for the disk.",
}
TONES: dict[VerdictName | None, str] = {
    "idle": "quiet",
    "starved": "bad",
    "bursty": "warn",
    "underused": "warn",
    "small-kernels": "warn",
    "healthy": "good",
    None: "quiet",
}
# A shape for each tone as well, for eyes that don't see its colour: a tick, a triangle, a square, a ring.
_SHAPES = {
    "good": "M38 84 8 54 20 42 38 60 80 16 92 28z",
    "warn": "M50 8 96 92H4z",
    "bad": "M8 8H92V92H8z",
    "quiet": "M50 6A44 44 0 1 0 50 94 44 44 0 1 0 50 6zM50 24A26 26 0 1 1 50 76 26 26 0 1 1 50 24z",
}


def gpu_card(summary: GpuSummary, columns: Columns) -> Markup:
    """Everything about one GPU."""
    remarks = [
        tag("li", tag("b", flag.name), bound(f"{flag.evidence}. {FLAG_MEANINGS[flag.name]}")) for flag in summary.flags
    ]
    if summary.lost is not None:
        remarks.insert(0, tag("li", tag("b", "lost"), _loss(summary.label, summary.lost, columns)))
    figures = _figures(summary)
    return card(
        verdict_block(summary),
        tag("ul", *remarks, class_="flags") if remarks else None,
        tiles(figures) if figures else None,
        *(gpu_charts(summary, columns) if columns.drawable else ()),
        id_=f"gpu-{summary.label.replace(':', '-')}",
        label=f"GPU {summary.label}",
    )


def verdict_word(summary: GpuSummary) -> Markup:
    """The verdict with its shape and colour."""
    name = None if summary.verdict is None else summary.verdict.name
    shape = tag("path", d=_SHAPES[TONES[name]])
    icon = tag("svg", shape, xmlns="http://www.w3.org/2000/svg", viewBox="0 0 100 100", aria_hidden="true")
    return tag("span", icon, name or "no verdict", class_=f"word {TONES[name]}")


def verdict_block(summary: GpuSummary) -> Markup:
    """The headline: the word, what it means, the rule and the figures behind it."""
    what = " · ".join(part for part in (f"GPU {summary.label}", summary.name) if part)
    util, verdict = summary.util, summary.verdict
    mean = None
    if util is not None:
        value = tag("b", f"{util.mean:.1f} ± {util.std:.1f} %")
        mean = tag("div", tag("small", "mean utilisation ± standard deviation"), value, class_="mean")
    if verdict is None:
        why, rule = _sentence(summary.why or "utilisation was not read"), None
    else:
        why = f"{MEANINGS[verdict.name]} {_sentence(verdict.evidence)}"
        rule = tag("p", f"Rule: {verdict.rule}", class_="rule")
    head = tag("div", tag("p", what, class_="what"), tag("h2", verdict_word(summary)))
    return tag("header", head, mean, tag("p", why, class_="why"), rule, class_="verdict")


def _figures(summary: GpuSummary) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    if (util := summary.util) is not None:
        found.append(("p5 to p95", f"{util.p5:.0f} – {util.p95:.0f}", "%"))
        found.append(("Time below 10 %", f"{100 * util.below_10:.1f}", "%"))
    if summary.cycle_seconds is not None:
        found.append(("Cycle", f"{summary.cycle_seconds:.1f}", "s"))
    if (sm := summary.sm) is not None:
        found.append(("SM activity", f"{sm.mean:.1f} ± {sm.std:.1f}", "%"))
    if summary.mem_peak is not None:
        total = f"of {summary.mem_total / GIB:.0f} " if summary.mem_total else ""
        found.append(("Peak memory", gib(summary.mem_peak), f"{total}GiB"))
    if summary.temp_peak is not None:
        found.append(("Peak temperature", f"{summary.temp_peak:.0f}", "°C"))
    if summary.power_mean_w is not None:
        limit = f"of {summary.power_limit_w:.0f} " if summary.power_limit_w else ""
        found.append(("Mean power", f"{summary.power_mean_w:.0f}", f"{limit}W"))
    return found


def _loss(label: str, reason: str, columns: Columns) -> str:
    lost = ((t, gpu) for t, gpu in zip(columns.times, columns.gpu(label), strict=True) if gpu is not None and gpu.lost)
    at = next((t for t, _ in lost), None)
    since = "" if at is None else f" at {svg.moment(at, span=columns.time.high - columns.time.low)}"
    return f"This GPU could not be read any more{since}: {reason}."


def _sentence(words: str) -> str:
    return bound(f"{words[:1].upper()}{words[1:].rstrip('.')}.")
