"""A diagnosis as JSON and back; `fulltilt compare` reads what `--json` wrote, of `fulltilt run`, too."""

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

from .finding import Diagnosis, Outcome

KIND = "fulltilt diagnosis"


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All of it, with the observations that it was made from."""
    return {"kind": KIND, **plain(dataclasses.asdict(diagnosis))}


def plain(value: Any) -> Any:
    """JSON has no word for a loss that is not a number; null is read back as one that is not known."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def from_json(data: Mapping[str, Any]) -> Diagnosis:
    found: Diagnosis = _adapter(Diagnosis).validate_python({key: value for key, value in data.items() if key != "kind"})
    return found


def read(path: Path) -> Diagnosis | Observation | Outcome:
    """What the file holds; of a run what came out of it. An InputError that says why where it holds none of them."""
    from pydantic import ValidationError

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"can't read {path} ({error.strerror}); give a file that --json wrote") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); give a file that --json wrote") from None
    if not isinstance(data, dict):
        raise InputError(f"{path} holds a {type(data).__name__}, not a diagnosis; give a file that --json wrote")
    try:
        if "plan" in data:  # what `fulltilt run` writes
            return _of_run(data, path)
        return from_json(data) if "findings" in data else observation_from_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path} is neither a diagnosis nor an observation ({where}: {first['msg']}); give a file that --json wrote"
        ) from None


def _of_run(data: Mapping[str, Any], path: Path) -> Diagnosis | Outcome:
    """The script with its plan; as it is, where that is how it was left."""
    if isinstance(data.get("after"), dict):
        outcome: Outcome = _adapter(Outcome).validate_python(data["after"])
        return outcome
    if isinstance(data.get("diagnosis"), dict):
        return from_json(data["diagnosis"])
    why = data.get("not_tuned") or "it used a plan that was found before"
    raise InputError(f"{path} holds no figures of its run ({why}); give one that was tuned, or of fulltilt diagnose")


@cache
def _adapter(kind: type[Diagnosis] | type[Outcome]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
