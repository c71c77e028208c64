"""`fulltilt env`: what does this machine have, and what of it is ours?"""

from __future__ import annotations

from typing import Annotated

import typer

from fulltilt.errors import InputError


def env(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="Training processes that the core budget is for.", show_default="one per visible GPU"),
    ] = None,
    try_paths: Annotated[
        bool, typer.Option("--try", help="Try every optional path once instead of judging by its files; takes seconds.")
    ] = False,
) -> None:
    """Show the machine: usable cores and what limits them, memory, GPUs, versions, optional paths, a core budget."""
    if ranks is not None and ranks < 1:
        raise InputError(f"--ranks must be 1 or more, found {ranks}")
    from fulltilt.machine import inspect

    if as_json:
        import json

        typer.echo(json.dumps(inspect(ranks=ranks, try_paths=try_paths).to_json(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from fulltilt.cli.env_view import show

    if try_paths:
        with Console(stderr=True).status("trying the optional paths …"):
            machine = inspect(ranks=ranks, try_paths=True)
    else:
        machine = inspect(ranks=ranks)
    show(machine, Console(highlight=False))
