"""A chosen value that can say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[Value]):
    """What was chosen, why, and the figures behind it."""

    value: Value
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
