"""Augmentation options from a YAML file.

    gpu_augmentation:
      preset: strong
      horizontal_flip_prob: 0.5
      rotation_degrees: 15

Whatever else the file configures (`data:`, `training:`) is left alone. A file that holds nothing but the options
themselves works too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fulltilt.augment.settings import Settings, problems_in
from fulltilt.errors import InputError
from fulltilt.words import many

if TYPE_CHECKING:
    from fulltilt.augment import GPUAugmentation

SECTION = "gpu_augmentation"
_OF_PROGRESSIVE = ("switch_epoch", "ramp_epochs", "minimal", "strong")
_OWN = ("preset", "seed", *_OF_PROGRESSIVE)
"""Keywords of the section that are no settings of one augmentation."""


def read_augmentation(path: Path) -> GPUAugmentation:
    """The preset with its options."""
    from fulltilt.augment.module import PRESETS

    options = read_options(path)
    preset = options.pop("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise InputError(f"{path}: preset: found {preset!r}; allowed: {', '.join(PRESETS)}")
    try:
        return PRESETS[preset](**options)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def section_problems(options: Mapping[str, Any]) -> list[str]:
    """All that is wrong with the section, apart from the preset's name."""
    settings = {name: value for name, value in options.items() if name not in _OWN}
    problems = problems_in(settings, beside=_OWN)
    if options.get("preset") != "progressive":
        problems += [f"{name}: needs preset: progressive" for name in _OF_PROGRESSIVE if options.get(name) is not None]
    for end in ("minimal", "strong"):
        if not isinstance(options.get(end) or {}, Mapping):
            problems.append(f"{end}={options[end]!r} must be a section of options")
    return problems


def read_options(path: Path) -> dict[str, Any]:
    """The section's keywords, checked: every problem is named, not only the first."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read ({error})") from error
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        raise InputError(f"{path}{where}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {error}") from error
    return _options(content, str(path))


def _options(content: Any, source: str) -> dict[str, Any]:
    known = {f.name for f in fields(Settings)} | {*_OWN}
    if isinstance(content, Mapping) and SECTION in content:
        options, at = content[SECTION], f"{SECTION}."
        if options is None:  # a section with nothing but comments in it
            options = {}
    elif isinstance(content, Mapping) and (known & set(content) or not content):
        options, at = content, ""
    else:
        found = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise InputError(f"{source}: expected a section {SECTION}: with augmentation options, found {found}")
    if not isinstance(options, Mapping):
        raise InputError(f"{source}: {SECTION} must be a mapping of options to values, found {options!r}")
    options = {str(name): value for name, value in options.items()}
    if problems := section_problems(options):
        listed = "".join(f"\n  {at}{problem}" for problem in problems)
        raise InputError(f"{source}: {many(len(problems), 'problem')}{listed}")
    return options
