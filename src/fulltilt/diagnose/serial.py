"""A diagnosis as JSON and back; `fulltilt compare` reads what `--json` wrote."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fulltilt.errors import InputError
from fulltilt.measure.observation import Observation
from fulltilt.measure.observation import from_json as observation_from_json

from .finding import Diagnosis

KIND = "fulltilt diagnosis"


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All of it, with the observations that it was made from."""
    return {"kind": KIND, **_plain(dataclasses.asdict(diagnosis))}


def _plain(value: Any) -> Any:
    """JSON has no word for a loss that is not a number; null is read back as one that is not known."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def from_json(data: Mapping[str, Any]) -> Diagnosis:
    found: Diagnosis = _adapter().validate_python({key: value for key, value in data.items() if key != "kind"})
    return found


def read(path: Path) -> Diagnosis | Observation:
    """What the file holds; an InputError that says why where it holds neither."""
    from pydantic import ValidationError

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"can't read {path} ({error.strerror}); give a file that --json wrote") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); give a file that --json wrote") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}, not a diagnosis; give a file that --json wrote")
    # What `fulltilt run` writes holds its diagnosis under that name.
    inner = data.get("diagnosis")
    if isinstance(inner, dict):
        data = inner
    try:
        return from_json(data) if "findings" in data else observation_from_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is neither a diagnosis nor an observation ({where}: {first['msg']}); give a file that --json wrote"
        ) from None


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Diagnosis)
