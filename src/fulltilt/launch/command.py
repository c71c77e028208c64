"""The user's own command: a script or a module, its arguments, and how many processes it trains in."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fulltilt.errors import InputError

_MAIN = "__main__.py"
_PYTHON = re.compile(r"python[\d.]*(\.exe)?")
_TORCHRUN = re.compile(r"torchrun(\.exe)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is run, as `python` or `torchrun` would be told."""

    target: str
    """The path of a file or of a folder with a `__main__.py`, or a module's name."""
    arguments: tuple[str, ...] = ()
    module: bool = False
    """`-m target`."""
    processes: int | None = None
    """torchrun's --nproc-per-node; None runs the script by itself."""

    @property
    def words(self) -> tuple[str, ...]:
        """As the user wrote it."""
        named = ("-m", self.target) if self.module else (self.target,)
        ranks = () if self.processes is None else ("--nproc-per-node", str(self.processes))
        return (*ranks, *named, *self.arguments)

    @property
    def file(self) -> Path | None:
        """The script; a module's is not known before it is imported."""
        path = Path(self.target)
        return None if self.module else path / _MAIN if path.is_dir() else path

    @property
    def folder(self) -> Path | None:
        """Where the script lies."""
        return None if self.file is None else self.file.absolute().parent

    def argv(self, python: str = sys.executable) -> list[str]:
        """The process to start."""
        named = ["-m", self.target] if self.module else [self.target]
        if self.processes is None:
            return [python, *named, *self.arguments]
        ranks = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        return [*ranks, *named, *self.arguments]


def parse(
    words: Sequence[str], *, processes: int | None = None, name: str = "run", options: Sequence[str] = ()
) -> Command:
    """`train.py --lr 0.1` or `-m pkg.train --lr 0.1`; all that follows the script is the script's own.

    What is wrong is said with the `name` of our command, and with those of its `options` that may have been meant.
    """
    if processes is not None and not 1 <= processes <= 64:
        raise InputError(f"--nproc-per-node: expected 1 to 64, found {processes}")
    if not words:
        raise InputError("no script was given; write it last, with its own arguments: train.py --lr 0.1")
    if words[0] == "-m":
        if len(words) == 1:
            raise InputError("-m: no module was named; write it as for python: -m package.train --lr 0.1")
        return Command(target=words[1], arguments=tuple(words[2:]), module=True, processes=processes)
    script, *arguments = words
    if script.startswith("-"):
        raise InputError(_no_option(script.partition("=")[0], options))
    path = Path(script)
    if not path.is_dir() and (around := _not_the_script(path.name, arguments, name)) is not None:
        raise InputError(around)
    if path.is_dir() and not (path / _MAIN).exists():
        raise InputError(f"{script} is a folder without a {_MAIN}; name the script in it")
    if not path.exists():
        raise InputError(f"there is no script {script}; give the path to the file that python would be given")
    if path.suffix.lower() == ".ipynb":
        raise InputError(
            f"{script} is a notebook; convert it first: jupyter nbconvert --to script {shlex.quote(script)}"
        )
    return Command(target=script, arguments=tuple(arguments), processes=processes)


def _no_option(option: str, options: Sequence[str]) -> str:
    """Of a word that stands where only our own options can."""
    near = difflib.get_close_matches(option.lstrip("-"), [known.lstrip("-") for known in options], n=1)
    hint = f"did you mean --{near[0]}?" if near else f"the script's own come after it: train.py {option}"
    return f"there is no option {option}; {hint}"


def _not_the_script(word: str, following: Sequence[str], name: str) -> str | None:
    """What to write instead of a word that starts a script, and is none."""
    if _PYTHON.fullmatch(word):
        script = following[0] if following and (following[0] == "-m" or following[0][:1] != "-") else "train.py"
        rest = following[1:2] if script == "-m" else ()
        return f"{word} is not the script: leave out `{word}`: fulltilt {name} {shlex.join([script, *rest])}"
    if _TORCHRUN.fullmatch(word):
        return (
            f"{word} is not the script; for several processes: fulltilt {name} --nproc-per-node 2 train.py, or "
            f"torchrun … -m fulltilt {name} train.py"
        )
    return None
