"""The command line: parse, call, show. Nothing heavy is imported before a command needs it.

Each command lives in a module of its own name (`cli/env.py` is `fulltilt env`).
"""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from fulltilt import __version__
from fulltilt.cli.augment import augment
from fulltilt.cli.bench import bench
from fulltilt.cli.cache import cache
from fulltilt.cli.compare import compare
from fulltilt.cli.diagnose import PASS_ON, diagnose
from fulltilt.cli.env import env
from fulltilt.cli.monitor import monitor
from fulltilt.cli.recipes import recipes
from fulltilt.cli.run import run
from fulltilt.cli.train import train
from fulltilt.cli.usage import Commands, EitherDash
from fulltilt.cli.video import video
from fulltilt.errors import FulltiltError

app = typer.Typer(
    name="fulltilt",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="PyTorch training at the speed of its GPU: watch it, explain it, fix it, prove it.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fulltilt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command()(env)
app.command()(monitor)
app.command(context_settings=PASS_ON)(diagnose)
app.command(context_settings=PASS_ON)(run)
app.command()(compare)
app.command(cls=EitherDash)(train)
app.add_typer(augment, name="augment")
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.add_typer(recipes, name="recipes")
app.add_typer(video, name="video")


def main() -> None:
    """The `fulltilt` command: an expected error is one line on stderr and a status that scripts can read."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ± that the locale can't write must not cost the summary
    try:
        app(prog_name="fulltilt")
    except FulltiltError as error:
        print(f"fulltilt: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
