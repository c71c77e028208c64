"""Value types as plain dictionaries: what is absent has no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """The value with only what JSON has; None and empty evidence leave no trace."""
    if is_dataclass(value):
        flat = {field.name: getattr(value, field.name) for field in fields(value)}
        return {key: plain(item) for key, item in flat.items() if item is not None and item != {}}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
