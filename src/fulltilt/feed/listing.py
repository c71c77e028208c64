"""What lists of images and of videos have in common: tables that name files, and labels that are numbers."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fulltilt.errors import InputError

log = logging.getLogger("fulltilt.feed")

_LABEL_COLUMNS = ("label", "class")
"""The first of them that a table has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line that names a file."""

    line: int
    path: str
    label: str | None
    """None where the table has no such column; `""` where its cell is empty."""
    cells: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: list[Row]


def read_table(file: Path, path_columns: Sequence[str]) -> Table:
    """A .csv with a column for paths, which are relative to the table's own folder."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            columns = tuple(reader.fieldnames or ())
            lines = [(reader.line_num, line) for line in reader]
    except OSError as error:
        raise InputError(f"{file} can't be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} can't be read as a table ({error}); save it as a .csv in UTF-8") from error
    named = next((name for name in path_columns if name in columns), None)
    if named is None:
        raise InputError(f"{file}: no column named {', '.join(path_columns)}; found {', '.join(columns) or 'none'}")
    # Beside masks, a class is a note: as a label it would become the target in their place.
    names = _LABEL_COLUMNS[:1] if "mask" in columns else _LABEL_COLUMNS
    label = next((name for name in names if name in columns), None)
    rows = []
    for number, cells in lines:
        if not cells[named]:
            raise InputError(f"{file}, line {number}: an empty {named}")
        text = None if label is None else cells[label] or ""
        rows.append(Row(line=number, path=str(file.parent / cells[named]), label=text, cells=cells))
    return Table(columns=columns, rows=rows)


def tell_of_no_zero(labels: Iterable[int]) -> None:
    """Numbers are never changed: a class that validation lacks would shift it against training."""
    found = set(labels)
    if len(found) > 1 and found == set(range(1, len(found) + 1)):
        log.warning(
            "labels are 1 to %d and none is 0: they are taken as they are, and classes are counted from 0 on, so "
            "class 0 stays empty; number them from 0 on, or give names",
            len(found),
        )
