"""Findings and trials on a page."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt import words
from fulltilt.diagnose.finding import Finding, Trial
from fulltilt.diagnose.thresholds import THRESHOLDS

from .markup import Child, Markup, bound, join, tag
from .page import card, table


def findings_card(title: str, findings: Sequence[Finding]) -> Markup:
    return card(
        tag("h2", title),
        tag("ol", *(_finding(finding) for finding in findings), class_="findings"),
        label=title,
    )


def _finding(finding: Finding) -> Markup:
    where = str(finding.place) if finding.place else None
    heading = tag("h3", bound(finding.title), tag("small", where) if where and where not in finding.title else None)
    body = tag(
        "div",
        heading,
        tag("ul", *(tag("li", bound(sentence)) for sentence in finding.evidence)) if finding.evidence else None,
        tag("p", finding.fix, class_="fix"),
        diff_block(finding.diff) if finding.diff else None,
    )
    return tag("li", _gain(finding), body)


def _gain(finding: Finding) -> Markup:
    later = finding.limit_gain
    if finding.gain is None:
        return tag("div", "?", tag("small", "can't be predicted"), class_="gain unknown")
    if finding.gain < THRESHOLDS.least_gain and later:
        return tag("div", bound(words.gain(later)), tag("small", "once it is fed"), class_="gain unknown")
    return tag("div", bound(words.gain(finding.gain)), tag("small", "predicted"), class_="gain good")


def diff_block(diff: str) -> Markup:
    lines = []
    for line in diff.splitlines():
        kind = "at" if line.startswith(("@@", "---", "+++")) else {"+": "add", "-": "del"}.get(line[:1])
        lines.append(tag("span", f"{line}\n", class_=kind))
    return tag("pre", join(*lines), class_="diff")


def trials_card(trials: Sequence[Trial], *, unit: str) -> Markup:
    rows: list[list[Child]] = []
    for trial in trials:
        rate = trial.samples_per_second
        shown = words.rate(rate, unit) if rate is not None else "–"
        noise = f" ± {words.percent(trial.noise)}" if trial.noise is not None and rate is not None else ""
        mark = tag("span", "kept", class_="mark good") if trial.kept else tag("span", "not kept", class_="quiet")
        rows.append([trial.title, bound(shown + noise), mark, bound(trial.reason)])
    head = ["Tried", "Rate", "", "What came of it"]
    shown = tag("div", table(head, rows, numeric=frozenset({1})), class_="trials")
    return card(tag("h2", "What was tried"), shown, label="What was tried")
