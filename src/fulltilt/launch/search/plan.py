"""A plan: settings that were found to pay for a script, on a machine, with versions; kept as a TOML file.

The file is named after the script and its arguments. What else the plan depends on stands in it, so that a plan that no
longer fits is noticed and its reason can be said.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fulltilt import __version__
from fulltilt.diagnose.finding import Level
from fulltilt.errors import FulltiltError, InputError
from fulltilt.launch.command import Command
from fulltilt.launch.search.candidates import LEVELS
from fulltilt.launch.settings import SETTINGS
from fulltilt.machine.files import cache_home, write_whole

FORMAT = 1
_UNIT = "per second"
_WORTH = ("python", "torch", "fulltilt")
_CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a plan was made for."""

    command: tuple[str, ...]
    content: str
    """A hash of the script's text, and of the configuration files among its arguments; what it imports is not known
    before it runs, and stands in the plan."""
    hardware: str
    versions: Mapping[str, str]

    def why_not(self, other: Key) -> str | None:
        """Why a plan of this key does not fit `other`, in one clause; None if it does."""
        if self.command != other.command:
            return f"it was made for `{' '.join(self.command)}`"
        if self.content != other.content:
            configured = any(word.endswith(_CONFIGURATION) for word in self.command[1:])
            named = ", or a configuration file among its arguments," if configured else ""
            return f"the script{named} has changed since"
        if self.hardware != other.hardware:
            return f"it was made on another machine ({self.hardware})"
        for name in _WORTH:
            if self.versions.get(name) != other.versions.get(name):
                return f"it was made with {name} {self.versions.get(name)}, now it is {other.versions.get(name)}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    key: Key
    level: Level
    settings: Mapping[str, Any]
    """Empty: the script is best left as it is."""
    before: float | None = None
    """As it is."""
    after: float | None = None
    limit: float | None = None
    """The step's, with the plan where it was measured with it."""
    unit: str = _UNIT
    """What the figures count: samples/s, or steps/s without a loader. Older plans don't say."""
    verified: str = ""
    draws_anew: bool = False
    """Samples draw others than the script's own run does, or may: it was said when losses were compared."""
    notes: tuple[str, ...] = field(default=())
    modules: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the user's own modules, which it had imported: its data set and its model may be in them."""

    def why_not(self, key: Key) -> str | None:
        """Why it does not fit what is to be run now, in one clause; None if it does."""
        changed = next((path for path, known in self.modules.items() if hash_of(path) != known), None)
        said = None if changed is None else f"{changed}, which the script imports, has changed since"
        return self.key.why_not(key) or said


def key_of(command: Command) -> Key:
    """Of this machine and these versions, without importing torch."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    versions = {"python": platform.python_version(), "torch": torch, "fulltilt": __version__}
    return Key(command=command.words, content=_content(command), hardware=_hardware(), versions=versions)


def hash_of(path: str) -> str:
    """Of a file's text; of one that can't be read, nothing."""
    try:
        return _hashed(Path(path).read_bytes())
    except OSError:
        return ""


def _hashed(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _content(command: Command) -> str:
    texts = [] if command.file is None else [command.file.read_bytes()]
    for argument in command.arguments:
        file = Path(argument.partition("=")[2] if argument.startswith("--") and "=" in argument else argument)
        if file.suffix in _CONFIGURATION and file.is_file():
            texts.append(file.read_bytes())
    return _hashed(b"".join(texts)) if texts else ""


def default_path(command: Command) -> Path:
    """Where a command's plan is kept: one file for each script and its arguments."""
    where = command.target if command.module else str(Path(command.target).absolute())
    told = "\0".join((where, *command.words, str(Path.cwd()) if command.module else ""))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(command.target).name)[:40]
    return cache_home() / "plans" / f"{name}-{hashlib.sha256(os.fsencode(told)).hexdigest()[:12]}.toml"


def write(plan: Plan, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FulltiltError(
            f"can't make the folder {path.parent} ({error.strerror}); name a file with --plan"
        ) from None
    write_whole(path, to_toml(plan))


def to_toml(plan: Plan) -> str:
    """The file's text."""
    lines = [
        "# A plan of `fulltilt run`. Settings may be edited; what they do is in docs/run.md.",
        f"format = {FORMAT}",
        f"level = {_value(plan.level)}",
        f"verified = {_value(plan.verified)}",
        f"draws_anew = {_value(plan.draws_anew)}",
        f"notes = {_value(list(plan.notes))}",
        "",
        "[settings]",
        *(f"{_value(name)} = {_value(value)}" for name, value in plan.settings.items()),
        "",
        "[figures]",
        f"unit = {_value(plan.unit)}",
        *(f"{name} = {_value(figure)}" for name, figure in _figures(plan).items() if figure is not None),
        "",
        "[made_for]",
        f"command = {_value(list(plan.key.command))}",
        f"content = {_value(plan.key.content)}",
        f"hardware = {_value(plan.key.hardware)}",
        "",
        "[made_for.versions]",
        *(f"{name} = {_value(number)}" for name, number in plan.key.versions.items()),
        *(["", "[made_for.modules]"] if plan.modules else ()),
        *(f"{_value(path)} = {_value(known)}" for path, known in plan.modules.items()),
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> Plan:
    """A plan from its file. InputError where it is damaged: what is wrong with it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        raise InputError(f"there is no plan {path}; leave --plan out to make one") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the plan {path} can't be read ({error}); delete it to make a new one") from None
    try:
        return _parsed(data)
    except (KeyError, TypeError, ValueError) as error:
        told = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"the plan {path} is damaged ({told}); delete it to make a new one") from None


def _parsed(data: dict[str, Any]) -> Plan:
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r}, this version reads {FORMAT}")
    if data["level"] not in LEVELS:
        raise ValueError(f"its level is {data['level']!r}; allowed: {', '.join(LEVELS)}")
    unknown = [name for name in data["settings"] if name not in SETTINGS]
    if unknown:
        raise ValueError(f"there is no setting {unknown[0]!r}; allowed: {', '.join(SETTINGS)}")
    wrong = [(name, value) for name, value in data["settings"].items() if not _fits(name, value)]
    if wrong:
        raise ValueError(f"{wrong[0][0]} is {wrong[0][1]!r}")
    made, figures = data["made_for"], data.get("figures", {})
    versions = {str(name): str(number) for name, number in made["versions"].items()}
    return Plan(
        key=Key(command=tuple(made["command"]), content=made["content"], hardware=made["hardware"], versions=versions),
        level=data["level"],
        settings=dict(data["settings"]),
        before=_figure(figures.get("before")),
        after=_figure(figures.get("after")),
        limit=_figure(figures.get("limit")),
        unit=str(figures.get("unit", _UNIT)),
        verified=str(data.get("verified", "")),
        draws_anew=data.get("draws_anew", False) is True,
        notes=tuple(str(note) for note in data.get("notes", ())),
        modules={str(path): str(known) for path, known in made.get("modules", {}).items()},
    )


def _fits(name: str, value: Any) -> bool:
    if name in ("loader.num_workers", "loader.prefetch_factor", "threads"):
        least = 0 if name == "loader.num_workers" else 1
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 1024
    if name == "loader.batch_size":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if name == "loader.undrawn":
        return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
    if name == "autocast":
        return value in ("bfloat16", "float16")
    if name == "compile":
        return isinstance(value, bool) or value in ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
    return isinstance(value, bool)


def _figure(value: Any) -> float | None:
    return None if value is None else float(value)


def _figures(plan: Plan) -> dict[str, float | None]:
    return {"before": plan.before, "after": plan.after, "limit": plan.limit}


def _value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "nan"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'


def _hardware() -> str:
    """The GPUs by their names, and the usable cores."""
    from fulltilt.machine.cores import read_cores
    from fulltilt.machine.gpus import read_gpus

    names = [gpu.name or "GPU" for gpu in read_gpus().gpus if gpu.cuda_index is not None]
    told = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "no GPU"
    return f"{told}, {read_cores().usable} cores"
