"""Tables of what can be set, from the code that defines it: docs/configuration.md's keys, docs/run.md's settings.

fields of the configuration ─┬─► name, default, what is allowed
the lines below each field ──┘   what it means
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fulltilt.bench.tables import markdown
from fulltilt.launch.settings import SETTINGS
from fulltilt.train.config import config
from fulltilt.train.config.file import allowed_values

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("data", config.DataConfig),
    ("data.video", config.VideoConfig),
    ("model", config.ModelConfig),
    ("training", config.TrainingConfig),
    ("gpu_augmentation", config.AugmentationConfig),
    ("metrics.NAME", config.MetricConfig),
    ("logging", config.LoggingConfig),
)
"""`data.val_video` has the keys of `data.video`."""


def keys() -> str:
    """A table of each section."""
    meanings = _meanings()
    parts = []
    for section, model in SECTIONS:
        rows = [
            (f"`{name}`", _default(field), allowed_values(field), meanings[model.__name__, name])
            for name, field in model.model_fields.items()
        ]
        about = inspect.cleandoc(model.__doc__ or "")
        parts.append(f"## {section}\n\n{about}\n\n{markdown(('key', 'default', 'allowed', 'meaning'), rows)}\n")
    return "\n".join(parts)


def settings() -> str:
    """What `fulltilt run` can put upon a script."""
    rows = [(f"`{name}`", kind.level, kind.says) for name, kind in SETTINGS.items()]
    return markdown(("setting", "level", "what it does"), rows) + "\n"


def _meanings() -> dict[tuple[str, str], str]:
    """By class and field: the text that stands below it."""
    found = {}
    for section in ast.parse(inspect.getsource(config)).body:
        if not isinstance(section, ast.ClassDef):
            continue
        for field, below in zip(section.body, section.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name), "a field is a name"
                found[section.name, field.target.id] = " ".join(ast.literal_eval(below.value).split()).replace(
                    "None:", "null:"
                )
    return found


def _default(field: FieldInfo) -> str:
    """As YAML has it."""
    if field.is_required():
        return "required"
    value: Any = field.default
    words = {None: "null", True: "true", False: "false"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"
