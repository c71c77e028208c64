"""`fulltilt bench commands`: training scripts that nobody here wrote, under `fulltilt run`."""

from __future__ import annotations

from typing import Annotated

import typer

from fulltilt.cli.bench_outputs import Outputs, Save
from fulltilt.cli.run import LevelName
from fulltilt.cli.saying import say


def commands(
    words: Annotated[list[str], typer.Argument(metavar="NAME=COMMAND...", help="Such as mnist='main.py --epochs 1'.")],
    *,
    level: Annotated[LevelName, typer.Option(help="As in fulltilt run.")] = LevelName.NUMERIC,
    max_seconds: Annotated[float, typer.Option(help="As in fulltilt run.")] = 180.0,
    save: Save = None,
) -> None:
    """Put any training commands under fulltilt run: how much of their time is attributed, how much faster they get."""
    from rich.table import Table

    from fulltilt.bench.commands import ATTRIBUTED_AT_LEAST, TIMES_AT_LEAST, measure, parse, to_json
    from fulltilt.bench.ground import joined
    from fulltilt.bench.tables import console_or

    named = parse(words)
    outputs = Outputs(save)
    found = []
    for one in measure(named, level=level.value, max_seconds=max_seconds, say=say):
        if one.problem is not None:
            say(f"{one.name}: {one.problem}")
        found.append(one)
        outputs.write(joined(save, to_json(found), by="name", order=None, key="commands"))
    wanted = f"wanted: {100 * ATTRIBUTED_AT_LEAST:g} % of the time known, {TIMES_AT_LEAST:g} times as fast"
    table = Table("command", "known", "before", "after", "times", "verdict", title="Samples per second", caption=wanted)
    for one in found:
        known = "–" if one.attributed is None else f"{100 * one.attributed:.1f} %"
        before, after = ("–" if rate is None else f"{rate:,.0f}" for rate in (one.before, one.after))
        times = "–" if one.times is None else f"{one.times:.2f}"
        table.add_row(one.name, known, before, after, times, one.problem or one.verdict)
    console_or(None).print(table)
