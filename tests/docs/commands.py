"""The commands that the documentation shows: found in its text, checked against what they call."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import typer.main

from fulltilt.cli import app

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
TOOLS = ("fulltilt", "torchrun", "make", "python", "pip", "mkdocs", ".ci/run")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_SHELL = ("", "sh", "bash", "console")


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its arguments, as a shell would split them."""

    words: tuple[str, ...]

    @property
    def tool(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return shlex.join(self.words)


def in_blocks(text: str) -> list[Command]:
    """Of blocks that are indented, or fenced as a shell's: what stands on lines that begin with a tool's name."""
    lines: list[str] = []
    for match in _FENCE.finditer(text):
        if match[1] in _SHELL:
            lines += match[2].replace("\\\n", " ").splitlines()
    outside = _FENCE.sub("", text).replace("\\\n", " ")
    lines += [line for line in outside.splitlines() if line.startswith("    ")]
    return _commands(line.strip() for line in lines)


def inline(text: str) -> list[Command]:
    """Between backticks, in sentences and tables."""
    return _commands(match[1] for match in _INLINE.finditer(_FENCE.sub("", text)))


def _commands(lines: object) -> list[Command]:
    found = []
    for line in lines:  # type: ignore[attr-defined]
        written = re.split(r" {2,}(?=[^-\s])| # |　", line)[0]  # what follows is what it does, in words
        if not re.match(rf"({'|'.join(map(re.escape, TOOLS))})( |$)", written):
            continue
        words = tuple(word for word in shlex.split(written) if word not in ("…", "..."))
        if words not in [one.words for one in found]:
            found.append(Command(words))
    return found


def check(command: Command) -> None:
    """What it names is there: a subcommand and its options, a target, a file, a module, an extra."""
    words = command.words
    if len(words) == 1 and command.tool != ".ci/run":
        return  # a tool that is only named
    if command.tool == "fulltilt":
        check_fulltilt(words[1:])
    elif command.tool == "torchrun":
        _check_torchrun(words[1:])
    elif command.tool == "make":
        _check_make(words[1:])
    elif command.tool == "python":
        _check_python(words[1:])
    elif command.tool == "pip":
        _check_pip(words[1:])
    elif command.tool == ".ci/run":
        assert (ROOT / ".ci" / "run").exists()
    else:
        raise AssertionError(f"nothing is known about {command.tool}: {command}")


def check_fulltilt(words: tuple[str, ...]) -> None:
    """Parsed as for a real run, up to where it would begin."""
    here = typer.main.get_command(app)
    context = here.make_context("fulltilt", [], resilient_parsing=True)
    rest = list(words)
    while rest and hasattr(here, "get_command") and not rest[0].startswith("-"):
        name = rest.pop(0)
        inner = here.get_command(context, name)
        assert inner is not None, f"there is no fulltilt {name}"
        here, context = inner, inner.make_context(name, [], parent=context, resilient_parsing=True)
    required = [one for one in here.params if one.required]
    if rest == ["--help"] or hasattr(here, "get_command") or (not rest and required):
        return  # a command that is only named
    here.make_context(here.name or "fulltilt", rest, parent=context.parent)


def _check_torchrun(words: tuple[str, ...]) -> None:
    from torch.distributed.run import get_args_parser

    if not words or words[-1].lstrip("-").isdigit():
        return  # options that are only named
    asked = get_args_parser().parse_args(list(words))
    if not asked.module:
        assert asked.training_script.endswith(".py")
        return
    assert asked.training_script == "fulltilt"
    check_fulltilt(tuple(asked.training_script_args))


def _check_make(words: tuple[str, ...]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        assert "=" in word or word in targets, f"the Makefile has no target {word}; it has {', '.join(targets)}"


def _check_python(words: tuple[str, ...]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, f"there is no module {words[1]}"
    elif "/" in words[0]:
        assert (ROOT / words[0]).exists(), f"there is no {words[0]}"


def _check_pip(words: tuple[str, ...]) -> None:
    assert words[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(extras), f"there is no extra {extra}; there are {', '.join(extras)}"
