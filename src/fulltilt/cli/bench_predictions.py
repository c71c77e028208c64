"""`fulltilt bench predictions`: what diagnoses predict, beside what their fixes give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fulltilt.cli.bench_outputs import JsonFile, Outputs
from fulltilt.cli.saying import say
from fulltilt.errors import InputError


def predictions(
    folder: Annotated[Path, typer.Argument(help="Scripts with one fault each; fixed/ has them without it.")] = Path(
        "tests/diagnose/scripts"
    ),
    *,
    only: Annotated[
        str,
        typer.Option(
            help="Names of scripts, with commas between; others stay as they are in the --json file.",
            show_default="all",
        ),
    ] = "",
    rounds: Annotated[int, typer.Option(help="How often both run, alternately.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """The gain that a diagnosis predicts for scripts with a planted fault, and the gain of fixing it."""
    from fulltilt.bench.predictions import as_line, measure, scripts_in, to_json
    from fulltilt.bench.target import target_lines

    if not 1 <= rounds <= 100:
        raise InputError(f"--rounds: expected 1 to 100, found {rounds}")
    outputs = Outputs(json_file)
    names = [name.strip() for name in only.split(",") if name.strip()]
    found = []
    for forecast in measure(folder, names=names, rounds=rounds):
        say(as_line(forecast))
        found.append(forecast)
        outputs.join(to_json(found), by="script", order=scripts_in(folder))
    print(*target_lines((one.script, target) for one in found for target in one.targets), sep="\n")
