"""Which videos, with which labels and segments: read from a folder, a CSV or a list of paths."""

from __future__ import annotations

import logging
import math
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fulltilt.errors import InputError
from fulltilt.feed.listing import (
    class_folders,
    files_by_class,
    files_in,
    is_folder,
    is_name,
    read_table,
    tell_of_empty,
    tell_of_no_zero,
)

log = logging.getLogger("fulltilt.feed")

SUFFIXES = (
    ".mp4", ".mkv", ".webm", ".avi", ".mov", ".ts", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp", ".mts", ".m2ts"
)  # fmt: skip
PATH_COLUMNS = ("path", "video", "file", "filename")


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
    """What clips are taken from, and the names of its labels, where they have any.

    Args:
        labels: in the place of those that the source has.
        temporal: rows of one video are its segments.
    """
    rows = _rows(source)
    if labels is not None:
        if len(labels) != len(rows):
            raise InputError(f"{len(labels)} labels for {len(rows)} videos; there must be as many")
        rows = [replace(row, label=_given(label)) for row, label in zip(rows, labels, strict=True)]
    names = {row.label for row in rows if isinstance(row.label, str)}
    if names:  # numbers among them are names, too
        rows = [row if row.label is None else replace(row, label=str(row.label)) for row in rows]
        names = {str(row.label) for row in rows if row.label is not None}
    known = list(classes) if classes is not None else sorted(names) if names else None
    first = 1 if temporal else 0  # of a frame, 0 says that nothing happens

    def number(label: int | str | None) -> int | None:
        if not isinstance(label, str):
            return label
        if known is None or label not in known:
            raise InputError(f"classes has no {label}; it has {', '.join((known or [])[:20])}")
        return known.index(label) + first

    if temporal:
        return _with_segments([(row, number(row.label)) for row in rows]), known
    bare = [row.where for row in rows if row.label is None]
    if bare and len(bare) < len(rows):
        raise InputError(f"{bare[0]}: no label, where {len(rows) - len(bare)} others have one")
    tell_of_no_zero(row.label for row in rows if isinstance(row.label, int))
    return [Entry(path=row.path, label=number(row.label), start=row.start, end=row.end) for row in rows], known


def paths_of(source: str | os.PathLike[str]) -> list[str]:
    """All videos of a folder or CSV, whatever its rows say of them, each once."""
    return list(dict.fromkeys(row.path for row in _rows(source)))


def _rows(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[_Row]:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        rows = _from_folder(path) if is_folder(path) else _from_csv(path)
    else:
        rows = [_Row(path=os.fspath(one), where=os.fspath(one)) for one in source]
    if not rows:
        where = source if isinstance(source, str | os.PathLike) else "an empty list"
        raise InputError(f"no videos in {where}; looked for {', '.join(SUFFIXES)}")
    return rows


def _with_segments(rows: Iterable[tuple[_Row, int | None]]) -> list[Entry]:
    """One for each video. A row without label and times names one in which nothing happens."""
    found: dict[str, list[Segment]] = {}
    for row, label in rows:
        segments = found.setdefault(row.path, [])
        if row.has_nothing and row.is_of_table:
            continue
        if label is None or row.start is None or row.end is None:
            given = {"label": label, "start": row.start, "end": row.end}
            raise InputError(
                f"{row.where}: no {', '.join(name for name, value in given.items() if value is None)}; segments "
                "(temporal=True) are rows of a .csv with label, start and end, and where nothing happens in a video "
                "its row has none of them"
            )
        if label < 1:
            raise InputError(
                f"{row.where}: label {label}; of a frame 0 says that nothing happens: number actions from 1 on, or "
                "give them names"
            )
        segments.append(Segment(start=row.start, end=row.end, label=label))
    return [Entry(path=path, segments=tuple(segments)) for path, segments in found.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    path: str
    where: str
    """For messages."""
    label: int | str | None = None
    start: float | None = None
    end: float | None = None
    is_of_table: bool = False

    @property
    def has_nothing(self) -> bool:
        return self.label is None and self.start is None and self.end is None


def _from_folder(folder: Path) -> list[_Row]:
    """Files of the folder itself, or of its subfolders, each of which is a class."""
    direct, subfolders = files_in(folder, SUFFIXES), class_folders(folder)
    if direct and subfolders:
        log.warning(
            "%s: %d videos beside %d subfolders, which are not looked into", folder, len(direct), len(subfolders)
        )
    if direct:
        return [_Row(path=path, where=path) for path in direct]
    rows = [_Row(path=file, where=file, label=name) for file, name in files_by_class(folder, subfolders, SUFFIXES)]
    if rows:
        tell_of_empty(folder, subfolders, {str(row.label) for row in rows})
    return rows


def _from_csv(path: Path) -> list[_Row]:
    found: list[_Row] = []
    read = read_table(path, PATH_COLUMNS).rows
    labels = [_label(row.label) for row in read]
    if any(isinstance(label, str) for label in labels):  # as they are written
        labels = [row.label or None for row in read]
    for row, label in zip(read, labels, strict=True):
        where = f"{path}, line {row.line}"
        start, end = (_time(where, row.cells.get(name)) for name in ("start", "end"))
        if not 0 <= (start or 0.0) < (math.inf if end is None else end):
            raise InputError(
                f"{where}: from {start or 0:g} s to {'the end' if end is None else f'{end:g} s'}; "
                "a segment has to begin at 0 or later, and before it ends"
            )
        found.append(_Row(path=row.path, where=where, label=label, start=start, end=end, is_of_table=True))
    return found


def _label(text: str | None) -> int | str | None:
    """A whole number, also one that a table has as 1.0, or a name."""
    if not text:
        return None
    return int(float(text)) if not is_name(text) and float(text).is_integer() else text


def _given(label: object) -> int | str:
    if isinstance(label, str):
        return label
    try:
        return operator.index(label)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"labels: expected whole numbers or names, found {label!r}") from None


def _time(where: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: a time in seconds was expected, found {text!r}") from None
