"""Our own options beside a script's arguments: which there are, and which were written where they are the script's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fulltilt.cli.saying import say

if TYPE_CHECKING:
    from fulltilt.launch.command import Command


def options_of(context: typer.Context) -> dict[str, bool]:
    """The long options of the command, and whether a value follows."""
    return {
        option: not getattr(parameter, "is_flag", False)
        for parameter in context.command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }


def say_late(command: Command, name: str, options: dict[str, bool]) -> None:
    """Warn of arguments of the script that are options of ours, unless it seems to have options of that name."""
    found = _late(command.arguments, options)
    if not found:
        return
    source = _source(command)
    found = {option: words for option, words in found.items() if not _has(source, option)}
    if not found:
        return
    script = Path(command.target).name
    *others, last = found
    many = bool(others)
    stands = f"{', '.join(others)} and {last} stand" if many else f"{last} stands"
    it, goes = ("them", "they go") if many else ("it", "it goes")
    named = ["-m", command.target] if command.module else [command.target]
    before = shlex.join([*(word for words in found.values() for word in words), *named])
    say(f"{stands} after {script}, so {goes} to {script}; for fulltilt, write {it} before: fulltilt {name} {before}")


def _late(arguments: Sequence[str], options: dict[str, bool]) -> dict[str, tuple[str, ...]]:
    """Options of ours among the arguments, with their values."""
    found: dict[str, tuple[str, ...]] = {}
    for at, word in enumerate(arguments):
        if word == "--":
            break
        option, same, _ = word.partition("=")
        if option in options:
            value = arguments[at + 1 : at + 2] if options[option] and not same else ()
            found[option] = (word, *value)
    return found


def _has(source: str, option: str) -> bool:
    """Whether the script's text has an option of that name: `--max-seconds`, or where a library makes it of a
    variable's or a flag's name, `max_seconds: float`, `max_seconds=10`, `"max_seconds"`."""
    if option in source:
        return True
    name = re.escape(option.removeprefix("--").replace("-", "_"))
    return re.search(rf"\b{name}\s*[:=]|['\"](--)?{name}['\"]", source) is not None


def _source(command: Command) -> str:
    """The script's text; a module's where it lies in the working folder. Empty where it can't be read."""
    file = command.file
    if command.module:
        module = Path(*command.target.split("."))
        file = module / "__main__.py" if module.is_dir() else module.with_name(f"{module.name}.py")
    try:
        return "" if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
