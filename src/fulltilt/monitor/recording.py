"""A recording: one sample per line, as JSON, written as it is taken.

Each line reaches the kernel in one write before the next sample is due, so a monitor that is killed loses the sample
that it was writing and no other. Reading forgives exactly that: a last line that was cut short.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fulltilt.errors import InputError, RecordingError
from fulltilt.machine.closing import Closing
from fulltilt.machine.sample import Sample

_EXPECTED = 'expected one sample as JSON, such as {"t": 1.0, "gpus": [{"index": 0, "util": 34}], "cpu": {"util": 6.2}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The samples of a file, in order."""

    samples: tuple[Sample, ...]
    warning: str | None = None
    """What was left out, when the last line had been cut short."""


class RecordingWriter(Closing):
    """Appends samples to a new file. Never writes over one that holds something.

    When the disk refuses a sample the recording ends there and `problem` says why; the monitor goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self._count = 0
        try:
            if path.is_file() and path.stat().st_size:
                raise InputError(f"--record: {path} already holds something; name another file or remove it first")
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed in close)
        except OSError as error:
            raise InputError(
                f"--record: can't write {path} ({error.strerror}); name a file in a folder that you own"
            ) from None

    def write(self, sample: Sample) -> None:
        """Append one line and hand it to the kernel."""
        if self.problem is not None:
            return
        text = json.dumps(sample.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n"
        line = text.encode(errors="backslashreplace")  # a name that is not UTF-8: as JSON's own escape is
        try:
            while line:  # a disk that is nearly full takes less than it is given
                line = line[os.write(self._file.fileno(), line) :]
        except OSError as error:
            self.problem = f"--record: {self.path} ends after {self._count} samples ({error.strerror})"
        else:
            self._count += 1

    def close(self) -> None:
        """Finish the file; a second call does nothing."""
        self._file.close()


def read_recording(path: Path) -> Recording:
    """Read a recording; RecordingError names the line that doesn't fit and what was expected there."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordingError(f"can't read {path} ({error.strerror}); expected a file written by --record") from None
    cut_short = lines.pop()  # what follows the last newline: empty unless the writer was killed
    samples: list[Sample] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            samples.append(_parse(line, path, number, samples))
    warning = None
    if cut_short.strip():
        try:
            samples.append(_parse(cut_short, path, len(lines) + 1, samples))
        except RecordingError:
            warning = f"{path}, line {len(lines) + 1}: cut short while it was written; left out"
    if not samples:
        raise RecordingError(f"{path} holds no samples; expected at least one line written by --record")
    return Recording(samples=tuple(samples), warning=warning)


def only_gpus(samples: Sequence[Sample], wanted: Sequence[str]) -> list[Sample]:
    """The samples with only the GPUs that `wanted` names, by index (`0`; `0:2` is a slice) or UUID; else all."""
    if not wanted:
        return list(samples)
    known: dict[str, str | None] = {}
    for sample in samples:
        for gpu in sample.gpus:
            known[gpu.label] = gpu.uuid or known.get(gpu.label)
    chosen = {label for label, uuid in known.items() if {label, label.partition(":")[0], uuid} & {*wanted}}
    for name in wanted:
        if not any(name in (label, label.partition(":")[0], uuid) for label, uuid in known.items()):
            there = ", ".join(known) or "none"
            raise InputError(f"--gpu: there is no GPU {name!r} in the recording; there are: {there}")
    return [replace(sample, gpus=tuple(gpu for gpu in sample.gpus if gpu.label in chosen)) for sample in samples]


def _parse(line: bytes, path: Path, number: int, before: list[Sample]) -> Sample:
    try:
        flat: Any = json.loads(line)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise _broken(path, number, f"found {_excerpt(line)} ({error})") from None
    if not isinstance(flat, dict):
        raise _broken(path, number, f"found {_excerpt(line)}")
    try:
        sample = Sample.from_json(flat)
    except (TypeError, ValueError) as error:
        raise _broken(path, number, str(error)) from None
    except KeyError as error:
        raise _broken(path, number, error.args[0]) from None
    if before and sample.t < before[-1].t:
        raise _broken(path, number, f"'t' must not go back, found {sample.t:g} after {before[-1].t:g}")
    return sample


def _broken(path: Path, number: int, what: str) -> RecordingError:
    return RecordingError(f"{path}, line {number}: {_EXPECTED}; {what}", line=number)


def _excerpt(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")
