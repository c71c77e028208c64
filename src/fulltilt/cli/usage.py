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

    Words are changed before they are read, so that an error shows an unknown one as it was typed. One that is a key of
    the configuration, such as --epochs, is none of our options: most keys have no option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {_dashed(option): option for parameter in self.params for option in parameter.opts}
        end = args.index("--") if "--" in args else len(args)
        words = [_as_known(word, known) for word in args[:end]]
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            if option not in known.values() and (keys := _keys_of(option)):
                meant = " or ".join(f"{key}=…" for key in keys)
                ctx.fail(f"No such option: {option}. It is a key of the configuration: write {meant}")
        return super().parse_args(ctx, words + args[end:])


def _as_known(word: str, known: dict[str, str]) -> str:
    option, same, value = word.partition("=")
    return f"{known.get(_dashed(option), option)}{same}{value}" if option.startswith("--") else word


def _keys_of(option: str) -> list[str]:
    from fulltilt.train.config.file import keys_named

    return keys_named(option.removeprefix("--").replace("-", "_"))


def _dashed(option: str) -> str:
    return option.replace("_", "-")
