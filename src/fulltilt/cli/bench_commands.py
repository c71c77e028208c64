"""`fulltilt bench commands`: training scripts that nobody here wrote, under `fulltilt run`."""

from __future__ import annotations

from typing import Annotated

import typer

from fulltilt.cli.bench_outputs import JsonFile, Outputs
from fulltilt.cli.run import LevelName
from fulltilt.cli.saying import say


def commands(
    words: Annotated[list[str], typer.Argument(metavar="NAME=COMMAND...", help="Such as mnist='main.py --epochs 1'.")],
    *,
    level: Annotated[LevelName, typer.Option(help="As in fulltilt run.")] = LevelName.NUMERIC,
    max_seconds: Annotated[float, typer.Option(help="As in fulltilt run.")] = 180.0,
    json_file: JsonFile = None,
) -> None:
    """Put any training commands under fulltilt run: how much of their time is attributed, how much faster they get."""
    from fulltilt.bench.commands import measure, parse, show, to_json

    named = parse(words)
    outputs = Outputs(json_file)
    found = []
    for one in measure(named, level=level.value, max_seconds=max_seconds, say=say):
        if one.problem is not None:
            say(f"{one.name}: {one.problem}")
        found.append(one)
        outputs.join(to_json(found), by="name", order=None)
    show(found)
