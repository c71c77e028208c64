"""The commands that the documentation shows: found in its text, checked against what they call."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

from fulltilt.bench.guides.run import parts_of as guides_parts
from fulltilt.bench.results import parts_of
from fulltilt.cli import app

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
TOOLS = ("fulltilt", "torchrun", "make", "python", "python3", "pytest", "pip", "mkdocs", ".ci/run")
READ = (".py", ".yaml", ".yml")
"""Kinds of files that a command is given and does not make itself."""
PARTS = {
    "feed": "feed.run.PARTS",
    "train": "train.run.WORKLOADS",
    "assist": "assist.figures.PARTS",
    "scripts": "scripts.SCRIPTS",
    "scaling": "scaling.figures.PARTS",
    "video": "video.figures.PARTS",
}
"""What `--only` of a benchmark may name; of the guides it is more than a list."""
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
        for part in written.split(" && "):  # after `cd`
            bare = re.sub(r"^(?:[A-Z_]+=\S* +)*(?:\.venv/bin/)?", "", part)
            if not re.match(rf"({'|'.join(map(re.escape, TOOLS))})( |$)", bare):
                continue
            words = tuple(word for word in shlex.split(bare) if word not in ("…", "..."))
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
    elif command.tool in ("python", "python3"):
        _check_python(words[1:])
    elif command.tool == "pytest":
        _check_pytest(words[1:])
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
    given = here.make_context(here.name or "fulltilt", list(rest), parent=context.parent).params
    for parameter in here.params:
        if parameter.param_type_name == "argument":
            _check_argument(given[parameter.name or ""])
    if context.parent is not None and context.parent.info_name == "bench" and "--only" in rest:
        _check_only(here.name or "", given["only"])


def _check_argument(given: Any) -> None:
    """Of a script and its own arguments, the script; an option before it that there is not is taken for one."""
    values = given if isinstance(given, list | tuple) else [given]
    for word in map(str, values[:1]):
        assert not word.startswith("-") or word == "-m", f"there is no option {word}"
        _check_there([word])


def _check_there(words: list[str]) -> None:
    for word in words:
        if Path(word).suffix in READ and "=" not in word:
            assert Path(word).exists() or (ROOT / word).exists(), f"there is no {word}"


def _check_only(benchmark: str, names: str) -> None:
    if benchmark == "guides":
        guides_parts(names)
    elif benchmark in PARTS:
        module, _, name = PARTS[benchmark].rpartition(".")
        parts_of(names, tuple(getattr(import_module(f"fulltilt.bench.{module}"), name)))
    else:
        raise AssertionError(f"nothing is known about what fulltilt bench {benchmark} --only may name")


def _check_torchrun(words: tuple[str, ...]) -> None:
    from torch.distributed.run import get_args_parser

    if not words or words[-1].lstrip("-").isdigit():
        return  # options that are only named
    asked = get_args_parser().parse_args(list(words))
    if not asked.module:
        assert asked.training_script.endswith(".py")
        _check_there([asked.training_script])
        return
    assert asked.training_script == "fulltilt"
    check_fulltilt(tuple(asked.training_script_args))


def _check_make(words: tuple[str, ...]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        assert "=" in word or word in targets, f"the Makefile has no target {word}; it has {', '.join(targets)}"


def _check_python(words: tuple[str, ...]) -> None:
    if words[0] == "-m":
        module, rest = words[1], words[2:]
        if module == "fulltilt":
            check_fulltilt(rest)
            return
        if module == "pytest":
            _check_pytest(rest)
            return
        found = importlib.util.find_spec(module)
        assert found is not None, f"there is no module {module}"
        source = Path(found.origin) if found.origin and module.startswith("fulltilt.") else None
    elif words[0].startswith("-"):
        return
    else:
        _check_there([words[0]])
        source, rest = ROOT / words[0], words[1:]
    if source is not None and source.exists():  # one of ours: a reader's own takes what it likes
        _check_arguments(rest, source)


def _check_arguments(words: tuple[str, ...], source: Path) -> None:
    """A script's options are texts in it that begin with a hyphen, whatever it parses them with."""
    nodes = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    known = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for word in words:
        option = word.partition("=")[0]
        assert not word.startswith("-") or option in {*known, "-h", "--help"}, f"{source.name} has no option {option}"
    _check_there(list(words))


def _check_pytest(words: tuple[str, ...]) -> None:
    for before, word in zip(("", *words), words, strict=False):
        if word.startswith("-"):
            option = word.partition("=")[0]
            assert option in _pytest_options(), f"pytest has no option {option}"
        elif before == "-m":
            named = set(re.findall(r"\w+", word)) - {"and", "or", "not"}
            assert named <= _marks(), f"there are no marks {named - _marks()}"
        elif "/" in word or word.endswith(".py") or not before.startswith("-"):
            path = word.partition("::")[0]
            assert (ROOT / path).exists(), f"there is no {path}"


@cache
def _pytest_options() -> frozenset[str]:
    command = [sys.executable, "-m", "pytest", "--help"]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", said))


def _marks() -> set[str]:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    return {mark.partition(":")[0] for mark in options["markers"]}


def _check_pip(words: tuple[str, ...]) -> None:
    if words == ("uninstall", "fulltilt"):
        return
    assert words[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
        assert set(extra.split(",")) <= set(extras), f"there is no extra {extra}; there are {', '.join(extras)}"
