"""Which videos, with which labels and segments: read from a folder, a CSV or a list of paths."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulltilt.errors import InputError
from fulltilt.feed.listing import (
    class_folders,
    files_in,
    files_under,
    is_folder,
    read_table,
    tell_of_empty,
    tell_of_no_zero,
)

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".ts", ".m4v", ".mpg", ".mpeg")
_PATH_COLUMNS = ("path", "video", "file", "filename")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a video in which something happens; in seconds, the end not included."""

    start: float
    end: float
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A video, or the part of it that clips are taken from."""

    path: str
    label: int | None = None
    start: float | None = None
    end: float | None = None
    """In seconds; None is the video's own."""
    segments: tuple[Segment, ...] = ()


def entries_of(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    labels: Sequence[int | str] | None,
    classes: Sequence[str] | None,
    *,
    temporal: bool,
) -> tuple[list[Entry], list[str] | None]:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        rows = _from_folder(path) if is_folder(path) else _from_csv(path)
    else:
        paths = [os.fspath(one) for one in source]
        if labels is not None and len(labels) != len(paths):
            raise InputError(f"{len(labels)} labels for {len(paths)} videos; there must be as many")
        rows = [(one, None if labels is None else labels[at], None, None) for at, one in enumerate(paths)]
    names = {label for _, label, _, _ in rows if isinstance(label, str)}
    known = list(classes) if classes is not None else sorted(names) if names else None
    first = 1 if temporal else 0  # of a frame, 0 says that nothing happens

    def number(label: int | str | None) -> int | None:
        if not isinstance(label, str):
            return label
        if known is None or label not in known:
            raise InputError(f"classes has no {label}; it has {', '.join((known or [])[:20])}")
        return known.index(label) + first

    if not temporal:
        tell_of_no_zero(label for _, label, _, _ in rows if isinstance(label, int))
        return [Entry(path=p, label=number(label), start=a, end=b) for p, label, a, b in rows], known
    segments: dict[str, list[Segment]] = {}
    for path_, label, start, end in rows:
        if (value := number(label)) is None or start is None or end is None:
            raise InputError(f"{path_}: temporal=True needs a label, a start and an end in every row")
        segments.setdefault(path_, []).append(Segment(start=start, end=end, label=value))
    return [Entry(path=path_, segments=tuple(found)) for path_, found in segments.items()], known


Row = tuple[str, int | str | None, float | None, float | None]


def _from_folder(folder: Path) -> list[Row]:
    """Files of the folder itself, or of its subfolders, each of which is a class."""
    direct = files_in(folder, SUFFIXES)
    if direct:
        return [(path, None, None, None) for path in direct]
    subfolders = class_folders(folder)
    rows: list[Row] = [
        (str(file), name, None, None)
        for name in subfolders
        for file in sorted(map(Path, files_under(folder / name, SUFFIXES)))
    ]
    if rows:
        tell_of_empty(folder, subfolders, {str(name) for _, name, _, _ in rows})
    return rows


def _from_csv(path: Path) -> list[Row]:
    found: list[Row] = []
    for row in read_table(path, _PATH_COLUMNS).rows:
        start, end = (_time(path, row.line, row.cells.get(name)) for name in ("start", "end"))
        if not 0 <= (start or 0.0) < (math.inf if end is None else end):
            raise InputError(
                f"{path}, line {row.line}: from {start or 0:g} s to {'the end' if end is None else f'{end:g} s'}; "
                "a segment has to begin at 0 or later, and before it ends"
            )
        found.append((row.path, _label(row.label), start, end))
    return found


def _label(text: str | None) -> int | str | None:
    if text is None or not text.strip():
        return None
    return int(text) if text.strip().lstrip("-").isdigit() else text.strip()


def _time(path: Path, line: int, text: str | None) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{path}, line {line}: a time in seconds was expected, found {text!r}") from None
