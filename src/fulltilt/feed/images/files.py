"""Image files as a source: a folder, a list or a CSV, with labels or masks."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

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
from fulltilt.pairs import by_image

log = logging.getLogger("fulltilt.feed")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
PATH_COLUMNS = ("path", "image", "file", "filename")
_FRACTION = re.compile(r"[^\d+-]")
"""What no whole number has."""


class ImageFiles:
    """Image files with what goes with them; nothing is opened before it is asked for.

    ImageFiles("train/")                         one class per subfolder, or no labels where there are none
    ImageFiles("train.csv")                      columns path (or image, file), label (or class) and mask, as there are
    ImageFiles(paths, labels=[…], masks=[…])     lists
    ImageFiles("images/", masks="masks/")        of the same names: 1.png, or all of them as 1_mask.png

    Labels that are names get numbers, in the order of the alphabet or of `classes`; numbers stay what they are, and as
    classes they are counted from 0 on.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        labels: Sequence[int | float | str] | None = None,
        masks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        """
        Args:
            classes: names in the order of their numbers, where labels are names or folders. For validation, give the
                training files' `classes`: a class that is missing there would shift the numbers of those behind it.
        """
        self.paths: list[str]
        self.masks: list[str] | None = None
        self.classes: list[str] | None = None if classes is None else list(classes)
        """Names of the classes, by label, where labels came as names or folders."""
        found: Sequence[int | float | str] | None = None
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            if is_folder(path):
                self.paths, found = _from_folder(path)
            else:
                self.paths, found, self.masks = _from_csv(path)
        else:
            self.paths = [os.fspath(path) for path in source]
        if not self.paths:
            where = source if isinstance(source, str | os.PathLike) else "an empty list"
            raise InputError(f"no image files in {where}; looked for {', '.join(SUFFIXES)}")
        if masks is not None:
            self.masks = self._masks(masks)
        self.labels = self._labels(labels if labels is not None else found)

    def __len__(self) -> int:
        return len(self.paths)

    def _labels(self, labels: Sequence[int | float | str] | None) -> npt.NDArray[np.int64 | np.float32] | None:
        if labels is None:
            return None
        if len(labels) != len(self.paths):
            raise InputError(f"{len(labels)} labels for {len(self.paths)} images; there must be as many")
        try:
            values = np.asarray(labels)
        except ValueError:
            raise InputError(
                "labels differ in length: each is a number, a name, or as many numbers as the others"
            ) from None
        if values.dtype.kind in "US":
            present = sorted(set(values.tolist()))
            self.classes = present if self.classes is None else self.classes
            unknown = [name for name in present if name not in self.classes]
            if unknown:
                raise InputError(f"classes has no {', '.join(unknown[:5])}; it has {', '.join(self.classes[:20])}")
            numbers = {name: number for number, name in enumerate(self.classes)}
            return np.array([numbers[name] for name in values.tolist()], np.int64)
        if values.dtype.kind in "iub":
            if values.ndim == 1:  # more are one column for each class
                tell_of_no_zero(values.tolist())
            return values.astype(np.int64)
        if values.dtype.kind == "f":
            return values.astype(np.float32)
        raise InputError(f"labels must be whole numbers, floats or names, found {values.dtype}")

    def _masks(self, masks: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
        if not isinstance(masks, str | os.PathLike):
            paths = [os.fspath(mask) for mask in masks]
            if len(paths) != len(self.paths):
                raise InputError(f"{len(paths)} masks for {len(self.paths)} images; there must be as many")
            return paths
        if not os.path.isdir(masks):
            cause = "is not a folder" if os.path.exists(masks) else "does not exist"
            raise InputError(f"the masks' folder {os.fspath(masks)} {cause}; in Python, masks may be a list of paths")
        by_stem = by_image([Path(path).stem for path in self.paths], _by_stem(Path(masks)))
        missing = [path for path in self.paths if Path(path).stem not in by_stem]
        if missing:
            there = f"are named like {Path(next(iter(by_stem.values()))[0]).name}" if by_stem else "are none"
            raise InputError(
                f"{len(missing)} of {len(self.paths)} images have no mask of their name in {masks}, first "
                f"{missing[0]}; masks there {there}, and a .csv with the columns path and mask may pair any names"
            )
        images: dict[str, str] = {}
        for path in self.paths:
            mask, *more = by_stem[Path(path).stem]
            if more:
                raise InputError(
                    f"{mask} and {more[0]} are both masks of {Path(path).stem}: leave one of them in the folder, or "
                    "pair images and masks in a .csv with the columns path and mask"
                )
            other = images.setdefault(Path(path).stem, path)
            if other != path:
                raise InputError(f"{other} and {path} would have one mask, {mask}: pass masks as a list")
        return [by_stem[Path(path).stem][0] for path in self.paths]


def _by_stem(folder: Path) -> dict[str, list[str]]:
    """Masks by their names without what says the kind of file."""
    found: dict[str, list[str]] = {}
    for path in files_in(folder, SUFFIXES):
        found.setdefault(Path(path).stem, []).append(path)
    return found


def _from_folder(folder: Path) -> tuple[list[str], list[str] | None]:
    """Files of the folder itself, or of its subfolders, each of which is a class."""
    direct, subfolders = files_in(folder, SUFFIXES), class_folders(folder)
    if direct and subfolders:
        log.warning(
            "%s: %d images beside %d subfolders, which are not looked into", folder, len(direct), len(subfolders)
        )
    if direct or not subfolders:
        return direct, None
    found = list(files_by_class(folder, subfolders, SUFFIXES))
    paths, labels = [path for path, _ in found], [label for _, label in found]
    if paths:
        tell_of_empty(folder, subfolders, labels)
    return paths, labels


def _from_csv(path: Path) -> tuple[list[str], list[float | int | str] | None, list[str] | None]:
    table = read_table(path, PATH_COLUMNS)
    texts, masks = [], []
    for row in table.rows:
        mask = row.cells.get("mask")
        if row.label == "" or ("mask" in table.columns and not mask):
            raise InputError(f"{path}, line {row.line}: an empty label or mask")
        if row.label is not None:
            texts.append(row.label)
        if mask:
            masks.append(str(path.parent / mask))
    labels = [_value(text) for text in texts]
    if len({type(label) for label in labels}) > 1 and any(isinstance(label, str) for label in labels):
        labels = [*texts]
    return [row.path for row in table.rows], labels or None, masks or None


def _value(text: str) -> int | float | str:
    """A number, or a name: 007 and 7 are two of these."""
    if is_name(text):
        return text
    return float(text) if _FRACTION.search(text) else int(text)
