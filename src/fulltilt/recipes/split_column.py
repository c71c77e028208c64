"""A column `split` of a table of pictures: its rows as tables of their own, to train on and to validate with."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fulltilt.feed.images.files import PATH_COLUMNS
from fulltilt.feed.listing import Row, read_table
from fulltilt.recipes.layout import TEST, TRAIN, VAL

COLUMN: Final = "split"
TRAIN_TABLE: Final = "train.csv"
VAL_TABLE: Final = "val.csv"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the column says."""

    tables: Mapping[str, str]
    """By the names of files: their contents, with absolute paths. None where the column is not used."""
    told: str
    """What became of the rows, or why the column is not used; in a line, behind others."""


def split_of(table: Path) -> Split | None:
    """None where there is no such column, or all rows are to train on."""
    found = read_table(table, PATH_COLUMNS)
    if COLUMN not in found.columns:
        return None
    parts: dict[str, list[Row]] = defaultdict(list)
    unknown: Counter[str] = Counter()
    for row in found.rows:
        value = row.cells[COLUMN] or ""
        part = next((names[0] for names in (TRAIN, VAL, TEST) if value.lower() in names), None)
        if part is None:
            unknown[value or "nothing"] += 1
        else:
            parts[part].append(row)
    if unknown or not parts[TRAIN[0]]:
        values = ", ".join([*list(unknown)[:_NAMED], *(["…"] if len(unknown) > _NAMED else [])])
        why = f"holds {values}" if unknown else f"has no row for {TRAIN[0]}"
        return Split(
            tables={}, told=f"; its column {COLUMN} {why} and is not used (rows are {TRAIN[0]}, {VAL[0]} or {TEST[0]})"
        )
    if len(parts[TRAIN[0]]) == len(found.rows):
        return None
    tables = {TRAIN_TABLE: _text(table.parent, parts[TRAIN[0]], found.columns)}
    if parts[VAL[0]]:
        tables[VAL_TABLE] = _text(table.parent, parts[VAL[0]], found.columns)
    left_out = len(parts[TEST[0]])
    return Split(tables=tables, told=f"; {left_out:,} to test with are left out" if left_out else "")


def _text(folder: Path, rows: Sequence[Row], columns: Sequence[str]) -> str:
    """What is read of them, for a table that lies elsewhere."""
    has_labels, has_masks = rows[0].label is not None, "mask" in columns
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["path", *["label"] * has_labels, *["mask"] * has_masks])
    for row in rows:
        mask = row.cells["mask"] if has_masks else None
        masks = [os.path.abspath(folder / mask) if mask else ""]
        table.writerow([os.path.abspath(row.path), *[row.label] * has_labels, *masks * has_masks])
    return text.getvalue()
