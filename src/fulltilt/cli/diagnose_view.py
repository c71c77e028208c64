"""What `fulltilt diagnose` shows in a terminal: headroom first, then where the time goes, then what to do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fulltilt import words
from fulltilt.diagnose.figures import PHASES, Figures
from fulltilt.diagnose.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from fulltilt.diagnose import Diagnosis, Finding
    from fulltilt.measure.observation import Phase

COLOURS: dict[Phase, str] = {
    "data wait": "red",
    "epoch start": "bright_red",
    "copy": "yellow",
    "forward": "blue",
    "backward": "cyan",
    "optimizer": "green",
    "sync": "magenta",
    "logging": "bright_magenta",
    "eval": "bright_blue",
    "checkpoint": "bright_yellow",
    "other": "bright_black",
}
_MARKS = "█▓▒░"
"""Neighbours differ in their mark too, for those who see no colours."""
_MOST_FINDINGS = 8
_INDENT = 2


def view(diagnosis: Diagnosis, *, width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    figures = Figures(observation=diagnosis.observation, limits=diagnosis.limits)
    width = min(width, 110) - _INDENT
    parts: list[RenderableType] = [Text(""), _about(diagnosis), Text(""), *_rates(diagnosis, figures, width)]
    if figures.steps:
        parts += [Text(""), *_bar(figures, width)]
    for title, findings in diagnosis.sections():
        parts += [Text(""), Text(title, style="bold"), *_findings(findings, width)]
    parts += _unseen(diagnosis, width)
    from rich.padding import Padding

    return Padding(Group(*parts), (0, 0, 0, _INDENT))


def _about(diagnosis: Diagnosis) -> Text:
    from rich.text import Text

    seen = diagnosis.observation
    facts = [" ".join(seen.command)]
    if seen.training is not None:
        facts.append(f"{seen.training.model}, {words.parameters(seen.training.parameters)}")
        facts.append(seen.training.device)
    if seen.surroundings is not None:
        facts += [seen.surroundings.gpu] if seen.surroundings.gpu else []
        facts.append(f"{seen.surroundings.cores} cores")
    if seen.world > 1:
        facts.append(f"{seen.world} ranks")
    return Text(" · ".join(facts), style="dim")


def _rates(diagnosis: Diagnosis, figures: Figures, width: int) -> Iterator[Text]:
    from rich.text import Text

    fine = diagnosis.headroom is not None and diagnosis.headroom < THRESHOLDS.no_headroom
    yield Text(diagnosis.verdict, style="bold green" if fine else "bold")
    yield Text("")
    rows = [("now", figures.rate, "blue"), ("limit of the step", diagnosis.limits.step, "green")]
    if figures.train_loader is not None and figures.unit == "samples":
        rows.append(("loader alone", diagnosis.limits.loader, "yellow"))
    shown = [rate for _, rate, _ in rows if rate]
    top = max(shown, default=1.0)
    ranks = " per rank" if diagnosis.observation.world > 1 else ""  # a step is one rank's, and so are its samples
    room = max(width - 44 - len(ranks), 10)
    for name, rate, colour in rows:
        line = Text(f"{name:<18} {words.rate(rate, figures.unit):>18}{ranks}  ")
        if rate:
            # A loader many times as fast needs no bar that makes the others invisible.
            scale = min(top, 2 * max(figures.rate or 0.0, diagnosis.limits.step or 0.0) or top)
            line.append("━" * max(1, round(room * min(rate / scale, 1.0))), style=colour)
        yield line


def _bar(figures: Figures, width: int) -> Iterator[Text]:
    from rich.text import Text

    costs = {phase: figures.cost(phase) for phase in PHASES}
    whole = sum(costs.values())
    if whole <= 0:
        return
    attributed = figures.observation.attributed
    seen = "" if attributed is None else f" · {words.percent(attributed)} attributed"
    yield Text.assemble(
        (f"Where {words.seconds(whole)} per step go", "bold"), (f" · {figures.steps} steps watched{seen}", "dim")
    )
    bar, legend = Text(""), []
    drawn = done = 0.0
    for at, phase in enumerate(phase for phase in PHASES if costs[phase] > 0):
        share = costs[phase] / whole
        done += share
        cells = round(width * done) - int(drawn)
        drawn += cells
        mark = _MARKS[at % len(_MARKS)]
        bar.append(mark * cells, style=COLOURS[phase])
        if share >= 0.005:
            legend.append(
                Text.assemble(
                    (mark, COLOURS[phase]), f" {phase} ", (words.percent(share), "bold"),
                    (f" {words.seconds(costs[phase])}", "dim"),
                )
            )  # fmt: skip
    yield bar
    yield from _flowed(legend, width)


def _flowed(items: Sequence[Text], width: int) -> Iterator[Text]:
    from rich.text import Text

    line = Text("")
    for item in items:
        if line.cell_len and line.cell_len + 3 + item.cell_len > width:
            yield line
            line = Text("")
        line = line + Text("   " if line.cell_len else "") + item
    if line.cell_len:
        yield line


def _findings(findings: Sequence[Finding], width: int) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    table.add_column(width=8, justify="right")
    table.add_column(ratio=1)
    table.width = width
    for finding in findings[:_MOST_FINDINGS]:
        where = str(finding.place) if finding.place else None
        title = Text(finding.title, style="bold")
        if where is not None and where not in finding.title:
            title.append(f"  {where}", style="dim not bold")
        body = Text("\n").join(
            [title, *(Text(sentence, style="dim") for sentence in finding.evidence), Text("→ " + finding.fix, "green")]
        )
        table.add_row(Text(_gain(finding), style="bold yellow" if finding.gain else "dim"), body)
    yield table
    if len(findings) > _MOST_FINDINGS:
        yield Text(f"and {len(findings) - _MOST_FINDINGS} more; --html and --json have them all", style="dim")


def _gain(finding: Finding) -> str:
    if finding.gain is None:
        return "?"
    if finding.gain < THRESHOLDS.least_gain and finding.limit_gain:
        return f"({words.gain(finding.limit_gain)})"
    return words.gain(finding.gain)


def _unseen(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    notes = [*diagnosis.notes, *diagnosis.observation.notes]
    later = any(_gain(finding).startswith("(") for finding in diagnosis.findings)
    if later:
        notes.append("a gain in brackets is the step's own: it shows once the step no longer waits for its data")
    if notes:
        yield Text("")
        table = Table.grid(padding=(0, 1))
        table.width = width
        table.add_column(width=8)
        table.add_column(ratio=1)
        for at, note in enumerate(notes):
            table.add_row(Text("notes" if not at else "", style="dim"), Text(note, style="dim"))
        yield table
    if any(finding.settings for finding in diagnosis.findings):
        yield Text("")
        yield Text.assemble(("next     ", "dim"), f"fulltilt run {shlex.join(diagnosis.observation.command)}")
