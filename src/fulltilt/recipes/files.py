"""A user's own data: pictures, looked at before a configuration is written for them, and videos with segments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_high
from tempfile import TemporaryDirectory
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fulltilt.decode import Header, decode_mask, probe
from fulltilt.errors import DecodeError, InputError
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.images.files import PATH_COLUMNS, ImageFiles
from fulltilt.feed.listing import read_table
from fulltilt.recipes.layout import Part, parts
from fulltilt.recipes.shared import copies, refuse_same_files
from fulltilt.recipes.split_column import TRAIN_TABLE, VAL_TABLE, Split, split_of
from fulltilt.train.config.data import image_files

_LOOKED_AT: Final = 32
"""Pictures that are opened to see what they are like: spread over all of them."""
_LEAST_CLASSES: Final = 2
_LEAST_PICTURES: Final = 5
"""Fewer can't be parted into some to train on and some to validate with."""
_NAMED: Final = 10
"""Classes, or labels of masks, that are named in a line; of more, the first."""
_PLACES: Final = 4
"""Of a label that is no whole number."""
_LARGEST_LABEL: Final = 255
"""Masks are fed as bytes."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What there is, as far as a configuration has to know."""

    train: Part
    val: Part | None
    """None: some of those for training are to be set aside."""
    count: int
    """Pictures to train on, each counted once."""
    repeated: int
    """Of them, those that a table has more than once."""
    contradicting: int
    """Of these, those with different labels or masks."""
    val_count: int
    classes: tuple[str, ...] | None
    """Names in the order of their numbers; None for pictures with masks."""
    alone: tuple[str, ...]
    """Classes of a single picture: it is trained on or validated with, never both."""
    labels: tuple[int, ...]
    """What the masks that were looked at hold."""
    channels: Literal[1, 3]
    height: int
    width: int
    """The median of the pictures that were looked at."""
    copied: int = 0
    """Pictures to validate with, of `compared`, whose content is that of one to train on."""
    compared: int = 0
    tables: Mapping[str, str] = field(default_factory=dict)
    """Files that `train` and `val` name, with their contents: the parts of a table with a column `split`."""
    note: str = ""
    """What became of such a column's other rows, or why it is not used."""

    def __str__(self) -> str:
        kind = f"{'grey' if self.channels == 1 else 'colour'} images of {self.height}×{self.width}"
        if self.classes is None:
            what = f"with masks{self._held()}"
        else:
            what = f"in {len(self.classes)} classes ({_first(self.classes)}){self._few()}"
        other = f"; {self.val_count:,} in {self.val.source} to validate with" if self.val is not None else ""
        return f"{self.count:,} {kind} {what}{self._again()}{other}{self._copied()}{self.note}"

    def _again(self) -> str:
        if not self.repeated:
            return ""
        target = "masks" if self.classes is None else "labels"
        differing = f", {self.contradicting:,} of them with different {target}" if self.contradicting else ""
        return f"; {self.repeated:,} listed more than once{differing}"

    def _copied(self) -> str:
        if not self.copied:
            return ""
        found = f"{self.copied:,} of these"
        if self.compared < self.val_count:
            found = f"of {self.compared:,} of these, which were compared, {self.copied:,}"
        return f"; {found} are copies of images to train on"

    def _few(self) -> str:
        return f"; a single image of {_first(self.alone)}" if self.alone else ""

    def _held(self) -> str:
        """What masks hold, where it is not the usual: ground and one thing."""
        searched = set(self.labels) - {0}
        if not searched:
            return " that hold 0 and nothing to search for"
        return f" that hold {_first(self.labels)}, of which all but 0 are taken as one" if len(searched) > 1 else ""


def _first(named: Sequence[object]) -> str:
    return ", ".join(map(str, named[:_NAMED])) + (", …" if len(named) > _NAMED else "")


def look(source: Path, masks: Path | None = None) -> Found:
    """See what is in a folder (one subfolder per class) or .csv (path, label, mask), and that all of it is there.

    Where the folder is parted into train and val (layout.py), or the table by its column split (split_column.py), these
    are what to train on and what to validate with.
    """
    if not source.exists():
        raise InputError(f"{source} does not exist; give a folder of images or a .csv file")
    train, val = parts(source.resolve(), None if masks is None else masks.resolve())
    split = split_of(source) if source.suffix.lower() == ".csv" and source.is_file() else None
    if split is None or not split.tables:
        found = _look(source, train, val, "" if val is None else f"{val.source},")
        return found if split is None else replace(found, note=split.told)
    try:
        return _look_at_parts(source, train, split)
    except InputError:
        _files(train, None)  # what is wrong with a line is said with its number in the user's own table
        raise


def _look_at_parts(source: Path, whole: Part, split: Split) -> Found:
    """Tables are read as training will read them."""
    with TemporaryDirectory() as folder:
        for name, text in split.tables.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        there = {name: replace(whole, source=Path(folder, name)) for name in split.tables}
        found = _look(source, there[TRAIN_TABLE], there.get(VAL_TABLE), f"{source}, rows")
    train, val = (replace(whole, source=Path(name)) for name in (TRAIN_TABLE, VAL_TABLE))
    val_or_none = None if found.val is None else val
    return replace(found, train=train, val=val_or_none, tables=split.tables, note=split.told)


def _look(source: Path, train: Part, val: Part | None, where: str) -> Found:
    """
    Args:
        where: those to validate with lie, for what is said of them.
    """
    files = _files(train, None)
    _check_target(files, train, str(source))
    count = len(set(files.paths))
    if count < _LEAST_PICTURES:
        raise InputError(f"{source}: {count} images are too few; there must be {_LEAST_PICTURES} at least")
    _check_there(files)
    seen = _looked_at(files)
    classes = () if files.masks is not None else _classes(files, source)
    labels = _labels(files, seen)
    others = None if val is None else _others(val, files, f"{where} to validate with")
    copied, compared = (0, 0) if others is None else copies(files.paths, others.paths)
    repeated, contradicting = _repeated(files)
    grey = all(header.mode in ("1", "L", "LA", "I;16") for header in seen)
    return Found(
        train=train,
        val=val,
        count=count,
        repeated=repeated,
        contradicting=contradicting,
        val_count=0 if others is None else len(others),
        classes=classes or None,
        alone=_alone(files, classes),
        labels=labels,
        channels=1 if grey else 3,
        height=median_high(header.height for header in seen),
        width=median_high(header.width for header in seen),
        copied=copied,
        compared=compared,
    )


def _files(part: Part, classes: list[str] | None) -> ImageFiles:
    return image_files(str(part.source), None if part.masks is None else str(part.masks), classes)


def _others(val: Part, files: ImageFiles, where: str) -> ImageFiles:
    """Those to validate with, of the classes that there are to train on; nothing less is asked of them."""
    try:
        others = _files(val, files.classes)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    _check_target(others, val, where)
    if (files.masks is None) != (others.masks is None):
        there, lacking = ("labels", "masks") if others.masks is None else ("masks", "labels")
        raise InputError(f"{where}: there are {there}, and those to train on have {lacking}; give these {lacking}, too")
    _check_there(others)
    refuse_same_files(files.paths, others.paths, where)
    _check_numbers(others, files, where)
    _labels(others, _looked_at(others))
    if shared := set(files.masks or []) & set(others.masks or []):
        raise InputError(
            f"{where}: {len(shared)} images have the names, and so the masks, of images to train on, first "
            f"{min(shared)}; part the masks as the images are parted"
        )
    return others


def _check_numbers(others: ImageFiles, files: ImageFiles, where: str) -> None:
    """Names were compared when they were read."""
    if files.labels is None or others.labels is None or files.classes is not None:
        return
    if others.labels.dtype.kind == "f":
        raise InputError(f"{where}: {_no_class(others.labels.astype(np.float32))}; classes are whole numbers")
    least, most = others.labels.min(), others.labels.max()
    if least < 0 or most > files.labels.max():
        raise InputError(
            f"{where}: labels are {least} to {most}, and those to train on go up to {files.labels.max()} only"
        )


def _check_target(files: ImageFiles, part: Part, where: str) -> None:
    if files.labels is None and files.masks is None:
        table = part.source.suffix.lower() == ".csv"
        columns = f" (found {', '.join(read_table(part.source, PATH_COLUMNS).columns)})" if table else ""
        raise InputError(
            f"{where}: {len(files)} images without labels or masks; have a subfolder for each class, a .csv with a "
            f"column label, class or mask{columns}, or give the folder of masks"
        )


def _classes(files: ImageFiles, source: Path) -> tuple[str, ...]:
    assert files.labels is not None
    if files.labels.dtype.kind == "f":
        raise InputError(
            f"{source}: {_no_class(files.labels.astype(np.float32))}; classes are whole numbers (0, 1, …) or names"
        )
    counted = Counter(files.labels.tolist())
    if min(counted) < 0:
        raise InputError(f"{source}: a label is {min(counted)}; classes are numbered from 0 on")
    names = files.classes or [str(number) for number in range(max(counted) + 1)]
    if len(counted) < _LEAST_CLASSES:
        only = names[next(iter(counted))]
        raise InputError(f"{source}: all {len(files)} images are of one class, {only}; there must be two at least")
    if len(files) < len(names):
        raise InputError(
            f"{source}: {len(files)} images for classes from 0 to {max(counted)}: are labels numbered from 0 on?"
        )
    return tuple(names)


def _alone(files: ImageFiles, classes: Sequence[str]) -> tuple[str, ...]:
    labels = () if files.labels is None else files.labels.tolist()
    counted = Counter(label for _, label in set(zip(files.paths, labels, strict=False)))
    return tuple(name for number, name in enumerate(classes) if counted[number] == 1)


def _repeated(files: ImageFiles) -> tuple[int, int]:
    """Pictures that are listed more than once, and how many of them with different labels or masks."""
    found: dict[str, list[int | str]] = defaultdict(list)
    targets = files.masks if files.labels is None else files.labels.tolist()
    for path, target in zip(files.paths, targets or [], strict=True):
        found[path].append(target)
    several = [listed for listed in found.values() if len(listed) > 1]
    return len(several), sum(len(set(listed)) > 1 for listed in several)


def _no_class(labels: NDArray[np.float32]) -> str:
    """Which label makes these numbers no classes: a missing one, which a table may write as nan, or a fraction."""
    missing = np.flatnonzero(np.isnan(labels))
    if missing.size:
        return f"{missing.size} of {labels.size} labels are missing (nan), first that of row {missing[0] + 1}"
    fractions = labels[labels != np.round(labels)]
    return f"labels are numbers like {round(float(fractions[0] if fractions.size else labels[0]), _PLACES)}"


def _check_there(files: ImageFiles) -> None:
    for paths in (files.paths, files.masks or []):
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            raise InputError(f"{len(missing)} of {len(paths)} files are not there, first {missing[0]}")


def _spread(files: ImageFiles) -> slice:
    step = max(1, len(files) // _LOOKED_AT)
    return slice(0, _LOOKED_AT * step, step)


def _looked_at(files: ImageFiles) -> list[Header]:
    found = []
    for path in files.paths[_spread(files)]:
        try:
            found.append(probe(Path(path).read_bytes()))
        except (OSError, DecodeError) as error:
            raise InputError(f"{path} can't be opened as an image ({error})") from error
    return found


def _labels(files: ImageFiles, pictures: Sequence[Header]) -> tuple[int, ...]:
    """What the masks of these pictures hold; one that can't be a picture's mask is an error."""
    held: set[int] = set()
    for path, picture in zip((files.masks or [])[_spread(files)], pictures, strict=False):  # no masks: none to see
        try:
            mask = decode_mask(Path(path).read_bytes())
        except (OSError, DecodeError) as error:
            raise InputError(f"{path}: {error}") from error
        if mask.shape != (picture.height, picture.width):
            sizes = f"{mask.shape[0]}×{mask.shape[1]}, its image {picture.height}×{picture.width}"
            raise InputError(f"{path}: the mask is {sizes}; they must be of one size")
        if mask.max() > _LARGEST_LABEL:
            raise InputError(f"{path}: the mask holds {mask.max()}; save masks with 8 bits, as 0 to {_LARGEST_LABEL}")
        held.update(np.unique(mask).tolist())
    return tuple(sorted(held))


def videos(
    path: str,
    *,
    classes: Sequence[str] | None = None,
    length: int = 768,
    size: int = 160,
    clips: int = 1,
    jitter: bool = True,
    seed: int = 0,
    cache: str | None = None,
) -> VideoClips:
    """Clips with a label for each frame, from a .csv of segments: path, label, start and end in seconds.

    Args:
        classes: names in the order of their numbers, the same for training and validation.
        cache: a folder that `fulltilt video cache` has filled.
    """
    return VideoClips(
        path,
        length=length,
        size=(size, size),
        clips=clips,
        jitter=jitter,
        classes=classes,
        temporal=True,
        seed=seed,
        cache=cache,
    )
