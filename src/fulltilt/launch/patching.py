"""Put a function in another's place."""

from __future__ import annotations

from typing import Any


def put(owner: Any, name: str, function: Any) -> None:
    """`owner.name` is `function` from now on; for good, since whoever kept a reference can't be told."""
    setattr(owner, name, function)
