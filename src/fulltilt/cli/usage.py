"""How what is typed is read, and how what is wrong with it is said."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_PYDANTICS = "Value error, "
"""typer has values checked by pydantic, and passes its words on."""
_MEANT = {
    "watch": "monitor",
    "explain": "diagnose",
    "profile": "diagnose",
    "fix": "run",
    "optimize": "run",
    "tune": "run",
    "doctor": "env",
    "info": "env",
}
"""Commands by other words than ours: of those the nearest in spelling would be offered, for `watch` the cache."""


class Commands(TyperGroup):
    """All of our commands: errors of their options are said in words of the command line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PYDANTICS)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _MEANT:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]!r}?")
        return super().resolve_command(ctx, args)


class EitherDash(TyperCommand):
    """--eval-interval is --eval_interval, as the guides write it: two names would not fit into the help's column.

    Words are changed before they are read, so that an error shows an unknown one as it was typed.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {_dashed(option): option for parameter in self.params for option in parameter.opts}
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [_as_known(word, known) for word in args[:end]] + args[end:])


def _as_known(word: str, known: dict[str, str]) -> str:
    option, same, value = word.partition("=")
    return f"{known.get(_dashed(option), option)}{same}{value}" if option.startswith("--") else word


def _dashed(option: str) -> str:
    return option.replace("_", "-")
