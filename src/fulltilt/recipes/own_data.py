"""A recipe's configuration, changed to a user's own data: where they are, and what follows for the model."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, Final

from fulltilt.errors import DecodeError, InputError, UnavailableError
from fulltilt.recipes.layout import parts
from fulltilt.words import many

if TYPE_CHECKING:
    from fulltilt.feed.clips.entries import Entry
    from fulltilt.recipes.files import Found
    from fulltilt.recipes.forecast_data import Readings

_SIDE: Final = 16
"""A U-Net halves its pictures four times: sides are multiples of this."""
_LARGEST: Final = 512
_LEAST_SIDE, _LARGEST_SIDE = 32, 224
"""Of pictures to classify: halved four times, too, and as large as most such networks see them."""
_MANY: Final = 100
"""Of fewer pictures a larger share is needed to see anything by."""
_STEPS: Final = 10
"""To an epoch, at least."""
_LEAST_BATCH: Final = 2
"""Batch norm can't train on a single sample."""
_BATCH: Final = 8
"""A batch of windows is a multiple of this, as GPUs like it."""
_LARGEST_FOUND: Final = 512
"""By `batch_size: auto`."""
_EVERY: Final = 5
"""One video of so many is for validation."""
_OPENED: Final = 8
"""Videos that are opened to see whether they are some, and what they are like."""
_ROUNDED: Final = 1.0
"""Seconds by which a segment may end after its video: times are rounded."""
_LARGEST_CLIP, _LARGEST_FRAME = 768, 160
"""Frames of a clip and their side, which `files.videos` takes unless something else is said."""
_CLIPS: Final = 2
"""Of a video that is long enough for them."""
_DUST: Final = re.compile(r"pm[ _]?2[._]?5(?!\d)")
"""PM2.5, also with a unit behind it."""


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """What was found, and what else the project needs."""

    told: str
    """In a line."""
    outputs: tuple[str, ...] = ()
    """What the model's outputs stand for, in their order."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files of the project, by name."""


def use_own_data(
    name: str, content: dict[str, Any], data: Path, masks: Path | None, target: str | None = None
) -> OwnData:
    """Change the sections of recipe `name` to fit the data."""
    if not data.exists():
        raise InputError(f"--data: {data} does not exist")
    if masks is not None and name != "segmentation":
        raise InputError(f"--masks: {name} has none; only segmentation has")
    if target is not None and name != "forecast":
        raise InputError(f"--target: {name} has none; only forecast has")
    if name == "segmentation":
        return _use_masked(content, data, masks)
    if name == "forecast":
        return _use_readings(content, data, target)
    return {"classification": _use_labelled, "video": _use_videos}[name](content, data)


def _use_labelled(content: dict[str, Any], data: Path) -> OwnData:
    train, _ = parts(data, None)
    if train.masks is not None:
        raise InputError(
            f"{train.source.parent} holds the folders {train.source.name} and {train.masks.name}, which are no "
            f"classes; for images with masks give --recipe segmentation --data {data}"
        )
    found = _use_pictures(content, data, None)
    if found.classes is None:
        raise InputError(
            f"{data}: these images have masks, and those are what is learnt; try --recipe segmentation, or for "
            "classes give a .csv without a column mask"
        )
    side = min(found.height, found.width) // _SIDE * _SIDE
    content["data"]["size"] = min(_LARGEST_SIDE, max(_LEAST_SIDE, side))
    content["model"]["args"]["classes"] = len(found.classes)
    content["metrics"]["accuracy"]["args"]["num_classes"] = len(found.classes)
    return OwnData(told=str(found), outputs=found.classes, files=found.tables)


def _use_masked(content: dict[str, Any], data: Path, masks: Path | None) -> OwnData:
    found = _use_pictures(content, data, masks)
    if found.classes is not None:
        raise InputError(f"{data}: these images have labels and no masks; give --masks, or --recipe classification")
    if found.train.masks is not None:
        content["data"]["masks"] = str(found.train.masks)
    if found.val is not None and found.val.masks is not None:
        content["data"]["val_masks"] = str(found.val.masks)
    sides = (found.height, found.width)
    content["data"]["size"] = [min(_LARGEST, max(_SIDE, side // _SIDE * _SIDE)) for side in sides]
    return OwnData(told=str(found), files=found.tables)


def _use_pictures(content: dict[str, Any], data: Path, masks: Path | None) -> Found:
    from fulltilt.recipes.files import look

    try:
        found = look(data, masks)
    except InputError:
        _refuse_others(data)
        raise
    content["data"].pop("args", None)
    content["data"] |= {
        "source": str(found.train.source),
        "val_share": 0.1 if found.count >= _MANY else 0.2,
        "channels": found.channels,
        "batch_size": min(content["data"]["batch_size"], max(_LEAST_BATCH, found.count // _STEPS)),
    }
    if found.val is not None:
        del content["data"]["val_share"]
        content["data"]["val_source"] = str(found.val.source)
    content["model"]["args"]["channels"] = found.channels
    return found


def _refuse_others(data: Path) -> None:
    """A folder without images, but with what another recipe takes."""
    from fulltilt.feed.clips.entries import SUFFIXES as VIDEOS
    from fulltilt.feed.images.files import SUFFIXES as IMAGES

    there = {Path(name).suffix.lower() for _, _, names in os.walk(data) for name in names}
    for recipe, kind in (("forecast", {".csv"}), ("video", {*VIDEOS})):
        if there & kind and not there & {*IMAGES}:
            files = ", ".join(sorted(there & kind))
            raise InputError(f"--data: {data} holds no images, but {files} files; try --recipe {recipe}")


def _use_readings(content: dict[str, Any], data: Path, wanted: str | None) -> OwnData:
    from fulltilt.recipes.forecast_files import read_readings

    readings = read_readings(data)
    target = _target(data, readings, wanted)
    if readings.still(target) == readings.sensors:
        raise InputError(f"{data}: {target} is the same in every hour, so there is nothing to forecast")
    content["data"]["args"] |= {"path": str(data.resolve()), "target": target}  # and so those of validation
    usual = content["model"]["args"]["window"]
    window = min(usual, _window(data, len(readings.values)))
    if window < usual:
        content["data"]["args"]["window"] = content["model"]["args"]["window"] = window
    windows = _windows(data, readings, target, window)
    if windows < _STEPS * _LARGEST_FOUND:  # the size that is fastest would leave an epoch with a step or two
        content["data"]["batch_size"] = min(windows, max(_BATCH, windows // _STEPS // _BATCH * _BATCH))
    sizes = {"sensors": len(readings.sensors), "quantities": len(readings.quantities)}
    content["model"]["args"] |= sizes
    told = (
        f"{len(readings.values):,} hours of {', '.join(readings.quantities)} at "
        f"{many(len(readings.sensors), 'sensor')}; {target} is forecast"
        + _missing(readings, target)
        + _still(readings, target)
        + (f"; left out: {', '.join(readings.left_out)}" if readings.left_out else "")
        + "".join(f"; {note}" for note in readings.notes)
    )
    return OwnData(told=told, outputs=readings.sensors)


def _target(data: Path, readings: Readings, wanted: str | None) -> str:
    """What is forecast: what is asked for, dust, or the only quantity; nothing is guessed."""
    from fulltilt.recipes.forecast_tables import name_of

    among = f"{data}: quantities are {', '.join(readings.quantities)}"
    if readings.left_out:
        among += f" (left out: {', '.join(readings.left_out)})"
    if wanted is not None:
        if name_of(wanted) not in readings.quantities:
            raise InputError(f"--target: {wanted} is no quantity of all sensors; {among}")
        return name_of(wanted)
    dust, left_out = (list(filter(_DUST.match, names)) for names in (readings.quantities, readings.left_out))
    found = dust or (readings.quantities if not left_out else ())
    if len(found) != 1:
        raise InputError(f"{among}; which of them is to be forecast? Say so with --target")
    return found[0]


def _windows(data: Path, readings: Readings, target: str, window: int) -> int:
    """How many there are to train on."""
    from fulltilt.recipes.forecast import with_target

    found, held_out = (int(part.sum()) for part in with_target(readings, target, window=window))
    if min(found, held_out) < _LEAST_BATCH:
        raise InputError(
            f"{data}: {found} windows to train on and {held_out} to validate with have a target hour in which all "
            f"sensors have read {target}. {readings.most_missing(target)}; leave it out, or the time in which little "
            "was read"
        )
    return found


def _missing(readings: Readings, target: str) -> str:
    if not readings.missing_share:
        return ""
    missing, most = f"{100 * readings.missing_share:.3g} %", readings.most_missing_of_all()
    beside = "" if most.endswith(f" {missing}") else f" ({most})"  # all lack the same
    told = f"; {missing} are missing{beside}, and the last reading before stands in their place"
    share = 1 - readings.can_be_target(target).mean()
    return told + (f"; {100 * share:.3g} % of the hours lack {target} at a sensor and are no targets" if share else "")


def _still(readings: Readings, target: str) -> str:
    """R² of what does not change is 0 or worse, however good the forecast is."""
    from fulltilt.recipes.forecast import border

    still = readings.still(target, border(len(readings.values)))
    return f"; in the hours to validate with, {target} never changes at {', '.join(still)}" if still else ""


def _window(data: Path, hours: int) -> int:
    """Hours of a window, of which as many windows as it has hours fit into those for validation."""
    from fulltilt.recipes.forecast import HORIZON, MULTIPLE, VAL_SHARE, border

    window = (hours - border(hours) - HORIZON) // 2 // MULTIPLE * MULTIPLE
    if window < MULTIPLE:
        least = math.ceil((2 * MULTIPLE + HORIZON) / VAL_SHARE)
        raise InputError(f"{data}: {hours} hours that all sensors cover are too few; there must be {least} at least")
    return window


@dataclass(frozen=True, kw_only=True)
class _Likeness:
    """The median of the videos that were opened."""

    frames: int
    height: int
    width: int
    late: str
    """The first segment that ends after its video, for a message."""


def _check_videos(entries: Sequence[Entry]) -> _Likeness | None:
    missing = [entry.path for entry in entries if not Path(entry.path).is_file()]
    if missing:
        raise InputError(f"{len(missing)} of {len(entries)} videos are not there, first {missing[0]}")
    return _open_some(entries)


def _open_some(entries: Sequence[Entry]) -> _Likeness | None:
    """Videos spread over all of them; without PyAV, which training will ask for, none."""
    from fulltilt.decode.video import open_video

    shapes: list[tuple[int, int, int]] = []
    late = ""
    step = max(1, len(entries) // _OPENED)
    for entry in entries[: _OPENED * step : step]:
        try:
            with open_video(entry.path) as video:
                seconds = video.duration_seconds
                shapes.append((len(video), video.height, video.width))
        except UnavailableError:
            return None
        except DecodeError as error:
            raise InputError(f"{entry.path} can't be opened as a video ({error})") from error
        behind = [one.start for one in entry.segments if seconds is not None and one.start >= seconds]
        if behind:
            raise InputError(
                f"{entry.path}: a segment begins at {behind[0]:g} s, and the video is over after {seconds:.4g} s; "
                "start and end are in seconds"
            )
        ends = max((one.end for one in entry.segments), default=0.0)
        if seconds is not None and ends > seconds + _ROUNDED and not late:
            late = f"; {entry.path}: a segment ends at {ends:g} s, and the video after {seconds:.4g} s"
    frames, height, width = (median_high(values) for values in zip(*shapes, strict=True))
    return _Likeness(frames=frames, height=height, width=width, late=late)


def _use_videos(content: dict[str, Any], data: Path) -> OwnData:
    """Segments parted into those of some videos, to train on, and those of the others."""
    from fulltilt.feed.clips.entries import PATH_COLUMNS, entries_of
    from fulltilt.feed.listing import read_table

    if data.suffix.lower() != ".csv":
        raise InputError(f"--data: {data} is no .csv; segments are rows of path, label, start and end in seconds")
    entries, classes = entries_of(data, None, None, temporal=True)
    if not any(entry.segments for entry in entries):
        columns = ", ".join(read_table(data, PATH_COLUMNS).columns)
        raise InputError(
            f"{data}: there is no segment in it: rows with a label, a start and an end; its columns are {columns}"
        )
    if classes is None:
        raise InputError(f"{data}: labels are numbers; segments need names of actions")
    if len(entries) < _EVERY:
        raise InputError(f"{data}: {len(entries)} videos are too few; there must be {_EVERY} at least")
    like = _check_videos(entries)
    tables: dict[str, str] = {}
    training, held_out = [entry for at, entry in enumerate(entries) if (at + 1) % _EVERY], entries[_EVERY - 1 :: _EVERY]
    for name, part in (("train.csv", training), ("val.csv", held_out)):
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["path", "label", "start", "end"])
        for entry in part:
            path = Path(entry.path).resolve()
            rows.writerows([path, classes[one.label - 1], one.start, one.end] for one in entry.segments)
            if not entry.segments:  # nothing happens in it
                rows.writerow([path, "", "", ""])
        tables[name] = table.getvalue()
    source = {"source": "fulltilt.recipes.files:videos", "val_source": "fulltilt.recipes.files:videos"}
    taken = _clips(like)
    content["data"] |= source | {
        "args": {"path": "train.csv", "classes": classes, **taken},
        "val_args": {"path": "val.csv", "jitter": False},
    }
    clips = len(training) * taken["clips"]
    content["data"]["batch_size"] = min(content["data"]["batch_size"], max(_LEAST_BATCH, clips // _STEPS))
    content["model"]["args"]["classes"] = len(classes)
    for metric in content["metrics"].values():
        metric["args"]["classes"] = len(classes)
    segments = sum(len(entry.segments) for entry in entries)
    size = "" if like is None else f" of {like.height}×{like.width}"
    told = f"{len(entries)} videos{size}, {segments} segments of {len(classes)} actions ({', '.join(classes)})"
    told += "" if like is None else like.late
    if not any(entry.segments for entry in held_out):  # the metric would be 0 whatever is learnt
        told += "; nothing happens in those to validate with: move some rows from train.csv to val.csv"
    if untrained := _actions(held_out) - _actions(training):
        names = ", ".join(classes[label - 1] for label in sorted(untrained))
        told += f"; only in those to validate with: {names}: move some rows from val.csv to train.csv"
    return OwnData(told=told, files=tables)


def _actions(entries: Sequence[Entry]) -> set[int]:
    return {one.label for entry in entries for one in entry.segments}


def _clips(like: _Likeness | None) -> dict[str, int]:
    """How clips are taken from such videos: no more frames than they have, and none that are scaled up."""
    if like is None:
        return {"clips": _CLIPS}
    side = min(like.height, like.width) // _SIDE * _SIDE
    return {
        "length": min(_LARGEST_CLIP, like.frames),
        "size": min(_LARGEST_FRAME, max(_LEAST_SIDE, side)),
        "clips": _CLIPS if like.frames >= _CLIPS * _LARGEST_CLIP else 1,
    }
