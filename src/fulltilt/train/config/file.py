"""A configuration file, read, overridden and checked: every problem is listed, with its path and what is allowed."""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fulltilt.errors import FulltiltError, InputError, UnavailableError
from fulltilt.train.config.config import (
    LOSSES,
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
    Config,
    LoggingConfig,
    TrainingConfig,
)
from fulltilt.train.config.references import is_reference, look_beside
from fulltilt.words import many

_CHOICES: dict[str, tuple[str, ...]] = {
    "model.name": MODELS,
    "training.optimizer": OPTIMIZERS,
    "training.scheduler": SCHEDULERS,
    "training.loss": LOSSES,
}
"""Texts that are one of these or package.module:callable."""
_FEW = 3


def read_config(path: Path, overrides: Sequence[str] = (), *, look_up: bool = False) -> Config:
    """The file with `section.key=value` overrides applied, checked.

    Args:
        look_up: also whether what it names is there: sources, modules, devices, metrics (which imports torch).
            Modules are found beside the file, too, from then on.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: can't be read ({error}); save it in UTF-8") from error
    if look_up:
        look_beside(path)
    return parse_config(text, overrides, source=str(path), look_up=look_up)


def parse_config(
    text: str, overrides: Sequence[str] = (), *, source: str = "configuration", look_up: bool = False
) -> Config:
    """As `read_config`, of a text."""
    problems: list[str] = []
    content = _load(text, source, problems)
    for override in overrides:
        _override(content, override, problems)
    return _checked(content, source, problems, look_up=look_up)


def make_config(content: Mapping[str, Any]) -> Config:
    """A `Config` from a mapping as a YAML file would give it; folders and files may be paths."""
    return _checked(_paths_as_text(content), "configuration", [])


def make_training(content: Mapping[str, Any]) -> TrainingConfig:
    """The section `training` alone."""
    return _checked({"training": _paths_as_text(content)}, "configuration", []).training


def as_settings(given: TrainingConfig | Config | Mapping[str, Any] | None) -> tuple[TrainingConfig, LoggingConfig]:
    """The sections `training` and `logging`, of whatever a program passes: one section or all, checked or not."""
    if given is None or isinstance(given, TrainingConfig):
        return given or TrainingConfig(), LoggingConfig()
    if isinstance(given, Mapping):
        if not set(given) & set(Config.model_fields):
            return make_training(given), LoggingConfig()
        given = make_config(given)
    if not isinstance(given, Config):
        raise InputError(
            f"config is {type(given).__name__}; expected a mapping, a TrainingConfig or a Config, as "
            "fulltilt.train.config.file.read_config(Path(…)) makes of a file"
        )
    return given.training, given.logging


def _paths_as_text(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _as_text(value) for key, value in content.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _paths_as_text(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def in_full(config: Config) -> Config:
    """With the arguments that validation takes over from training written out, for a reader."""
    data = config.data.model_copy(update={"val_args": config.data.full_val_args})
    return config.model_copy(update={"data": data})


def keys_named(name: str) -> list[str]:
    """Keys by their last part, as most people remember them: `training.epochs` for `epochs`."""
    return [known for known in _paths(Config) if known.endswith(f".{name}")]


def dump_config(config: Config) -> str:
    """The complete effective configuration, as YAML that reads back as the same."""
    plain = config.model_dump(mode="json")
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


# --- reading -----------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as PyYAML reads it, except that 1e-3 is a number, as everyone means it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def _load(text: str, source: str, problems: list[str]) -> dict[str, Any]:
    try:
        node = yaml.compose(text, Loader=_Loader)
        _note_repeated(node, "", problems)
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        raise InputError(f"{source}{where}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        sections = ", ".join(Config.model_fields)
        raise InputError(f"{source}: expected the sections {sections}, found {type(content).__name__}")
    return content


def _note_repeated(node: yaml.Node | None, path: str, problems: list[str]) -> None:
    """A key given twice: the second would win without a word."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        name = f"{path}{key.value}"
        line = key.start_mark.line + 1
        if name in seen:
            problems.append(f"{name}: given twice, in lines {seen[name]} and {line}; leave one of them out")
        seen[name] = line
        _note_repeated(value, f"{name}.", problems)


def _override(content: dict[str, Any], text: str, problems: list[str]) -> None:
    name, equals, value = text.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path):
        problems.append(f"{text!r}: expected section.key=value, such as training.lr=0.01")
        return
    if len(path) == 1 and path[0] not in Config.model_fields:
        near = keys_named(path[0])
        hint = f"; did you mean {' or '.join(near)}?" if near else _near(path[0], list(_paths(Config)))
        problems.append(f"{path[0]}: not a key{hint}")
        return
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError:
        parsed = value
    here = content
    for part in path[:-1]:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    here[path[-1]] = parsed


# --- checking ----------------------------------------------------------------------------------------------------


def _checked(content: dict[str, Any], source: str, problems: list[str], *, look_up: bool = False) -> Config:
    config = None
    kind: type[FulltiltError] = InputError
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        problems += _lines(error, content)
    if isinstance(section := content.get("gpu_augmentation"), Mapping):
        problems += _augmentation_problems(section)
    problems += _relations(content)
    if look_up:
        from fulltilt.train.config.names import name_problems

        named = name_problems(content)
        if named and not problems and all(isinstance(problem, UnavailableError) for problem in named):
            kind = UnavailableError  # nothing is wrong with the file
        problems += map(str, named)
    if problems or config is None:
        unique = list(dict.fromkeys(problems))
        listed = "".join(f"\n  {problem}" for problem in unique)
        raise kind(f"{source}: {many(len(unique), 'problem')}{listed}")
    return config


def _lines(error: ValidationError, content: Mapping[str, Any]) -> list[str]:
    """One line per key, however many members its union has that did not fit."""
    lines: dict[str, str] = {}
    for item in error.errors():
        path, field, owner = _locate(item["loc"])
        name = ".".join(path)
        if name in lines:
            continue
        if item["type"] == "extra_forbidden":
            known = list(owner.model_fields)
            lines[name] = f"{name}: not a key{_near(path[-1], known)}"
        elif item["type"] == "missing":
            lines[name] = f"{name}: missing; give {allowed_values(field)}"
        else:
            lines[name] = f"{name}: found {_value_at(content, path)!r}; allowed: {allowed_values(field)}"
    return list(lines.values())


def _locate(loc: tuple[int | str, ...]) -> tuple[list[str], FieldInfo | None, type[BaseModel]]:
    """The key that an error is about: pydantic's own path goes on into union members and tuples."""
    owner: type[BaseModel] = Config
    path: list[str] = []
    field: FieldInfo | None = None
    for part in map(str, loc):
        inner = _model_in(field)
        if field is not None and inner is None:
            break
        if inner is not None:
            if _is_mapping(field) and len(path) == 1:  # metrics: their names are the user's
                path.append(part)
                field = FieldInfo(annotation=inner)
                continue
            owner = inner
            if part == inner.__name__:  # the tag of a union's member
                continue
        path.append(part)
        field = owner.model_fields.get(part)
        if field is None:
            break
    return path, field, owner


def _model_in(field: FieldInfo | None) -> type[BaseModel] | None:
    """The section that a field holds, alone, optional or in a mapping."""
    if field is None:
        return None
    annotation = field.annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _is_mapping(field: FieldInfo | None) -> bool:
    return field is not None and get_origin(field.annotation) is dict


def _value_at(content: Any, path: Sequence[str]) -> Any:
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _near(name: str, known: Sequence[str]) -> str:
    """The key that was meant, or all there are."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; allowed: {', '.join(known)}"


def _paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        inner = None if _is_mapping(field) else _model_in(field)
        found += [f"{prefix}{name}"] if inner is None else _paths(inner, f"{prefix}{name}.")
    return found


def allowed_values(field: FieldInfo | None) -> str:
    """In words."""
    if field is None:
        return "nothing"
    return " or ".join(dict.fromkeys(_kinds(field.annotation, tuple(field.metadata))))


def _kinds(annotation: Any, metadata: tuple[Any, ...] = ()) -> list[str]:
    """An annotation in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(args[0], tuple(args[1:]))
    if origin in (Union, types.UnionType):
        return [kind for member in args for kind in _kinds(member, metadata)]
    if origin is Literal:
        return [" or ".join(map(str, args)) if len(args) < _FEW else "one of " + ", ".join(map(str, args))]
    if origin is tuple:
        return ["[height, width]"]
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return ["a section with keys of its own"]
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
    return [words[annotation] + _bounds(metadata)]


def _bounds(metadata: tuple[Any, ...]) -> str:
    """Limits may stand alone or in a Field's own metadata."""
    flat = [part for entry in metadata for part in (entry.metadata if isinstance(entry, FieldInfo) else (entry,))]
    signs = ((Ge, "≥", "ge"), (Gt, ">", "gt"), (Le, "≤", "le"), (Lt, "<", "lt"))
    found = [f"{sign} {getattr(part, name):g}" for part in flat for kind, sign, name in signs if isinstance(part, kind)]
    return "".join(f" {part}" if not place else f" and {part}" for place, part in enumerate(found))


def _augmentation_problems(section: Mapping[str, Any]) -> list[str]:
    """What GPUAugmentation has to say about its keywords."""
    from fulltilt.augment.config import section_problems

    options = {str(name): value for name, value in section.items()}
    return [f"gpu_augmentation.{problem}" for problem in section_problems(options)]


def _video_problems(at: Callable[[str], Any]) -> list[str]:
    """What does not go with clips of videos, or with the lack of them."""
    problems = []
    if at("data.video") is None:
        return ["data.val_video: needs data.video"] if at("data.val_video") is not None else []
    if at("data.val_video") is not None and at("data.val_source") is None:
        problems.append("data.val_video: needs data.val_source")
    if at("data.size") is None:
        problems.append("data.size: missing; clips of videos need it: a whole number or [height, width]")
    problems += [
        f"data.video: is for a folder or .csv file of videos; {name} has to give its own clips"
        for name in (at("data.source"), at("data.val_source"))
        if isinstance(name, str) and is_reference(name)
    ]
    return problems + [
        f"data.{key}: is for images; leave it out with data.video"
        for key in ("masks", "val_masks", "features")
        if at(f"data.{key}") is not None
    ]


def _relations(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with values that are right each by itself."""
    problems: list[str] = []

    def at(path: str) -> Any:
        return _value_at(content, path.split("."))

    for path, known in _CHOICES.items():
        name = at(path)
        if isinstance(name, str) and name not in known and not is_reference(name):
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]}?)" if near else ""
            problems.append(f"{path}: found {name!r}{hint}; allowed: {', '.join(known)} or package.module:callable")
    features = at("data.features")
    if isinstance(features, str) and not is_reference(features):
        problems.append(f"data.features: found {features!r}; allowed: package.module:callable")
    if at("training.use_amp") is False and at("training.precision") in ("bf16", "fp16"):
        problems.append(
            f"training.precision: found {at('training.precision')!r} with use_amp: false, which is fp32; "
            "leave one of them out"
        )
    if at("data.val_source") is not None and at("data.val_share") is not None:
        problems.append("data.val_share: samples are set aside only without data.val_source; leave one of them out")
    if at("data.val_masks") is not None and at("data.val_source") is None:
        problems.append("data.val_masks: needs data.val_source")
    return problems + _video_problems(at)
