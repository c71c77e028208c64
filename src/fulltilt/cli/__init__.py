"""The command line: parse, call, show. Nothing heavy is imported before a command needs it.

Each command lives in a module of its own name (`cli/env.py` is `fulltilt env`).
"""

from __future__ import annotations

import errno
import io
import os
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
from fulltilt.cli.saying import say
from fulltilt.cli.train import train
from fulltilt.cli.usage import Commands, EitherDash
from fulltilt.cli.video import video
from fulltilt.errors import FulltiltError

_REFUSED = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""By what standard output leads to: a pipe that nobody reads, a file on a full disk, a terminal that is gone."""

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


def _open_what_is_closed() -> None:
    """Started with `>&-` there is no stream to write to, and the next file that is opened gets its number: what a
    library or a child prints would go into it. What is printed goes nowhere, as was asked for."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            _write_nowhere(number)
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (until the end)
            setattr(sys, name, stream)


def _write_nowhere(number: int) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, number)
    if nothing != number:
        os.close(nothing)


def _is_refused() -> bool:
    """Whether standard output can't be written: an error in reading or writing another file names none, either."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return True
    return False


def main() -> None:
    """The `fulltilt` command: an expected error is one line on stderr and a status that scripts can read."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a ± that the locale can't write must not cost the summary
    try:
        try:
            app(prog_name="fulltilt")
        finally:
            sys.stdout.flush()
    except FulltiltError as error:
        say(str(error))
        sys.exit(error.exit_status)
    except OSError as error:  # files that are named are spoken of by whoever writes them
        if error.errno not in _REFUSED or error.filename is not None or not _is_refused():
            raise
        _write_nowhere(sys.stdout.fileno())  # what is left in its buffer
        if error.errno != errno.EPIPE:  # who reads no further knows why
            say(f"standard output can't be written ({error.strerror}): it lacks some")
        sys.exit(1)
