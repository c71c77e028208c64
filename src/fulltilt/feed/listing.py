"""What lists of images and of videos have in common: folders, tables that name files, labels that are numbers."""

from __future__ import annotations

import codecs
import csv
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from fulltilt.errors import InputError
from fulltilt.words import some

log = logging.getLogger("fulltilt.feed")

_LABEL_COLUMNS = ("label", "class")
"""The first of them that a table has."""
_PADDED = re.compile(r"[+-]?0\d")
_SEPARATORS = (",", ";", "\t")
"""A comma where the header has none of them."""


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


def is_folder(source: Path) -> bool:
    """Whether a source is a folder; otherwise it is a table."""
    if os.path.isdir(source):
        return True
    if source.suffix.lower() == ".csv":
        return False
    cause = (
        "name the folder of single files, or list them in a .csv"
        if os.path.exists(source)
        else "nothing of that name is there"
    )
    raise InputError(f"{source} is neither a folder nor a .csv file; {cause}")


def files_in(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Files that lie in the folder itself."""
    return [entry.path for entry in _scan(folder) if entry.name.lower().endswith(suffixes)]


def files_by_class(folder: Path, classes: Sequence[str], suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each file with its class. Links that lead from one class into another are not followed."""
    tops = {(folder / name).resolve() for name in classes}
    for name in classes:
        for file in _files_under(folder / name, suffixes, tops):
            yield file, name


def _files_under(folder: Path, suffixes: tuple[str, ...], tops: Set[Path]) -> list[str]:
    """Files of the folder and of all folders in it, also those that are linked, but for other ones' tops; each once."""
    found: list[tuple[str, list[str]]] = []
    top = folder.resolve()
    seen = {top, *top.parents}  # a link back to one of them would lead round in a circle
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        meant = sorted(filter(_is_meant, folders), reverse=True)
        inner = {Path(root, name).resolve(): name for name in meant}  # of two links to one folder, the first
        new = {real: name for real, name in inner.items() if real not in seen}
        folders[:] = sorted(name for real, name in new.items() if not tops & {real, *real.parents} - {top})
        seen |= inner.keys()
        found.append((root, sorted(name for name in names if _is_meant(name) and name.lower().endswith(suffixes))))
    return [os.path.join(root, name) for root, names in sorted(found) for name in names]


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder."""
    return [entry.name for entry in _scan(folder) if entry.is_dir()]


def tell_of_empty(folder: Path, classes: Sequence[str], found: Iterable[str]) -> None:
    """A class that silently is none would shift the numbers of those behind it."""
    if empty := sorted(set(classes) - set(found)):
        log.warning("%s: subfolders without a file to read are no classes: %s", folder, some(empty, 5))


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if _is_meant(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        _refuse(error)


def _is_meant(name: str) -> bool:
    """Nobody trains on "._photo.jpg" or on what lies in ".ipynb_checkpoints"."""
    return not name.startswith(".")


def _refuse(error: OSError) -> NoReturn:
    """A folder that is passed over would be a class that is missing."""
    reason = error.strerror or str(error)
    raise InputError(f"{error.filename} can't be looked into ({reason}): make it readable, or name files in a list")


def read_table(file: Path, path_columns: Sequence[str]) -> Table:
    """A .csv with a column for paths, which are relative to the table's own folder."""
    with open_table(file) as (opened, dialect):
        reader = csv.DictReader(opened, dialect=dialect)
        written = tuple(header_of(reader.reader))
        reader.fieldnames = columns = _folded(written)
        lines = [(reader.line_num, _stripped(line)) for line in reader]
    named = next((name for name in path_columns if name in columns), None)
    if named is None:
        raise InputError(
            f"{file}: no column named {', '.join(path_columns)}; found {', '.join(written) or 'none'}. The first line "
            "names the columns, with commas, semicolons or tabs between them"
        )
    if not lines:
        raise InputError(f"{file} names no files: below its first line there is nothing")
    # Beside masks, a class is a note: as a label it would become the target in their place.
    names = _LABEL_COLUMNS[:1] if "mask" in columns else _LABEL_COLUMNS
    label = next((name for name in names if name in columns), None)
    rows = []
    for number, cells in lines:
        if not cells[named]:
            raise InputError(f"{file}, line {number}: an empty {named}")
        if "\0" in f"{cells[named]}{cells.get('mask')}":  # the file system knows no such name
            raise InputError(f"{file}, line {number}: a zero byte in a path: the table is damaged, save it again")
        text = None if label is None else cells[label] or ""
        rows.append(Row(line=number, path=str(file.parent / cells[named]), label=text, cells=cells))
    return Table(columns=columns, rows=rows)


def header_of(rows: Iterable[list[str]]) -> list[str]:
    """The first row that is not blank."""
    return next((cells for cells in rows if any(cell.strip() for cell in cells)), [])


def number_of(text: str) -> float | None:
    """The number that a cell is; None for 1_000, which is one to Python alone."""
    if "_" in text or not text.isascii():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def is_name(text: str) -> bool:
    """Whether a label is a word, or written as none writes a number: 007 and 7 are two names."""
    return number_of(text) is None or _PADDED.match(text) is not None


@contextmanager
def open_table(file: Path) -> Iterator[tuple[TextIO, csv.Dialect]]:
    """A .csv at its beginning, and how its cells are written. What goes wrong while it is read is an InputError."""
    try:
        with file.open("rb") as opened_first:
            begins_wide = opened_first.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with file.open(newline="", encoding="utf-16" if begins_wide else "utf-8-sig") as opened:
            dialect = csv.excel()
            dialect.delimiter, dialect.skipinitialspace = _separator_of(opened), True
            opened.seek(0)
            yield opened, dialect
    except OSError as error:
        raise InputError(f"{file} can't be read ({error.strerror or error})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} can't be read as a table ({error}); save it as a .csv in UTF-8") from error


def _separator_of(opened: TextIO) -> str:
    """What parts the header most: spreadsheets write semicolons where a comma is a decimal point, or tabs."""

    def columns(separator: str) -> int:
        opened.seek(0)
        return len(header_of(csv.reader(opened, delimiter=separator, skipinitialspace=True)))

    return max(_SEPARATORS, key=columns)


def _folded(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Path, LABEL or " start" are what they say; left as they are where that would make two of one name."""
    folded = tuple(name.strip().lower() for name in columns)
    return folded if len(set(folded)) == len(folded) else columns


def _stripped(line: Mapping[str, Any]) -> dict[str, Any]:
    """As the header is: "cat" and "cat " are one class, and no path begins with the space after a comma."""
    return {name: cell.strip() if isinstance(cell, str) else cell for name, cell in line.items()}


def tell_of_no_zero(labels: Iterable[int]) -> None:
    """Numbers are never changed: a class that validation lacks would shift it against training."""
    found = set(labels)
    if len(found) > 1 and found == set(range(1, len(found) + 1)):
        log.warning(
            "labels are 1 to %d and none is 0: they are taken as they are, and classes are counted from 0 on, so "
            "class 0 stays empty; number them from 0 on, or give names",
            len(found),
        )
