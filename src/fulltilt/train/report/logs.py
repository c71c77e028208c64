"""Where records go: JSON lines, TensorBoard. A record is flat: names to numbers and text."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from fulltilt.errors import InputError, UnavailableError


class Log(Protocol):
    """Takes records."""

    name: str
    """What it is called where people are told of it."""

    def write(self, kind: str, record: Mapping[str, Any], *, step: int) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """One record a line, each on disk's way as soon as it is written; a resumed run goes on at the end."""

    def __init__(self, path: Path) -> None:
        self._end_broken_line(path)
        self.name = str(path)
        # A file's name that is not UTF-8 is written as JSON's own escape is.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)

    def write(self, kind: str, record: Mapping[str, Any], *, step: int) -> None:
        line = {"kind": kind, "time": round(time.time(), 3), "step": step, **record}
        self._file.write(json_line(line) + "\n")

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _end_broken_line(path: Path) -> None:
        """A run that was killed while writing left half a line: what follows must not be joined to it."""
        if path.exists() and path.stat().st_size:
            with path.open("rb+") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")


class TensorBoard:
    """Scalars for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.name = str(folder)
        self._writer = SummaryWriter(str(folder))

    def write(self, kind: str, record: Mapping[str, Any], *, step: int) -> None:
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


def open_logs(folder: Path | None, *, jsonl: bool, tensorboard: bool | Literal["auto"]) -> list[Log]:
    """The logs that are wanted and can be had."""
    installed = find_spec("tensorboard") is not None
    if tensorboard is True and not installed:
        raise UnavailableError("logging.tensorboard: true, but TensorBoard is not installed; pip install tensorboard")
    if folder is None:
        return []
    path = folder / "log.jsonl"
    try:
        logs: list[Log] = [JsonLines(path)] if jsonl else []
    except OSError as error:
        raise InputError(f"can't write {path} ({error.strerror}); name another output folder") from None
    if tensorboard and installed:
        logs.append(TensorBoard(folder / "tensorboard"))
    return logs


def json_line(record: Mapping[str, Any]) -> str:
    """JSON has no NaN: what is not finite is written as text."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
