"""From the section `data` to feeds: image files, videos, or whatever a callable returns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fulltilt.augment import GPUAugmentation
from fulltilt.augment.module import PRESETS
from fulltilt.errors import InputError
from fulltilt.feed import Feed, ImageFiles, VideoClips, feed
from fulltilt.feed.order import Order
from fulltilt.feed.tensor_feed import samples_overlap
from fulltilt.train.config.config import AugmentationConfig, Config, DataConfig
from fulltilt.train.config.references import called, found, is_reference
from fulltilt.train.sources import as_feed

log = logging.getLogger("fulltilt.train")

_OF_FILES = ("cache", "quality", "features", "on_error")
"""Keys of `data` that say something about image files only; clips can be left out, too."""


def make_feeds(config: Config, device: torch.device) -> tuple[Feed, Feed | None, GPUAugmentation | None]:
    """Feeds for training and validation, and the augmentation that is left to the loop.

    Image files are augmented in their feed, in the same pass that makes them one size and normalises them.
    """
    data, seed = config.data, config.training.seed or 0
    if data.source is None:
        raise InputError("data.source: missing; give a folder of images, a .csv file or package.module:callable")
    train = _source("data.source", data.source, data.args, data.masks, clips=_clips(data, seed, training=True))
    if isinstance(train, ImageFiles) and train.labels is None and train.masks is None and data.features is None:
        raise InputError(
            f"data.source: {len(train)} images without labels or masks; have a subfolder for each class, a .csv with a "
            "column label, class or mask, or give the folder of masks (data.masks)"
        )
    val = None
    if data.val_source is not None:
        classes = train.classes if isinstance(train, ImageFiles | VideoClips) else None
        clips = _clips(data, seed, training=False)
        val = _source("data.val_source", data.val_source, val_args(data), data.val_masks, classes, clips)
    elif data.val_share is not None:
        train, val = set_aside(train, data.val_share, seed)
    in_feed = isinstance(train, ImageFiles)
    wanted = config.augments or config.gpu_augmentation is not None  # switched off it still gives size and scale
    augment = make_augmentation(config, seed) if in_feed or wanted else None
    if augment is not None:
        augment.train(config.augments)
    training = _feed(train, data, device, augment, seed=seed, training=True)
    if val is None:
        return training, None, None if in_feed else augment
    scaling = make_augmentation(config, seed).eval() if isinstance(val, ImageFiles) else None
    return training, _feed(val, data, device, scaling, seed=seed, training=False), None if in_feed else augment


def val_args(data: DataConfig) -> dict[str, Any]:
    """What the callable of `data.val_source` is called with. What it takes over is said, and where that is all."""
    args = data.full_val_args
    if taken := [name for name in args if name not in data.val_args]:
        log.info("data.val_args: %s from data.args", ", ".join(f"{name}={args[name]!r}" for name in taken))
    if data.val_source == data.source and args == data.args and is_reference(str(data.source)):
        log.warning(
            "data.val_args: nothing in it differs from data.args, so validation has the samples of training, unless "
            "%s draws others each time; name what differs, such as a split or a seed",
            data.source,
        )
    return args


def make_augmentation(config: Config, seed: int) -> GPUAugmentation:
    """The preset with its options; images from files come out in the size that `data` asks for."""
    wanted = config.gpu_augmentation or AugmentationConfig()
    options = {"seed": seed, **wanted.options}
    if config.data.size is not None and not {"size", "random_crop"} & set(options):
        options["size"] = config.data.size
    return called("gpu_augmentation", PRESETS[wanted.preset], options)  # type: ignore[no-any-return]


def set_aside(source: Any, share: float, seed: int) -> tuple[Any, Any]:
    """A share of the samples for validation: the same ones for the same seed, and a file's on one side."""
    parts = source if isinstance(source, tuple | list) else None
    if isinstance(source, DataLoader | Feed | IterableDataset) or not (parts or hasattr(source, "__len__")):
        kind = type(source).__name__
        raise InputError(f"data.val_share: samples of a {kind} can't be set aside; give data.val_source")
    tensors = source.tensors if isinstance(source, TensorDataset) else parts or (source,)
    if any(isinstance(each, Tensor | np.ndarray) and samples_overlap(each) for each in tensors):
        raise InputError(
            "data.val_share: samples overlap (windows of one recording), so validation would hold parts of what is "
            "trained on; give data.val_source, with windows of a time of their own"
        )
    paths = _paths(source)
    files = list(dict.fromkeys(paths))
    length = len(files or (parts[0] if parts else source))
    held = round(length * share)
    if not 0 < held < length:
        raise InputError(f"data.val_share: {share:g} of {length} samples is {held}; both parts must have some")
    order = Order(length=length, batch_size=1, shuffle=True, seed=seed).permutation(0)
    kept, given = np.sort(order[held:]), np.sort(order[:held])
    if files:  # whole ones: what a table has several times, or clips of one video, are too much alike
        held_out = {files[number] for number in given}
        is_given = np.array([path in held_out for path in paths])
        kept, given = np.flatnonzero(~is_given), np.flatnonzero(is_given)
    if isinstance(source, VideoClips):
        return source.of(kept.tolist()), source.of(given.tolist(), jitter=False)
    return _part(source, kept), _part(source, given)


def _paths(source: Any) -> list[str]:
    """The file of each sample, or of each video; none where samples are no files."""
    if isinstance(source, VideoClips):
        return [entry.path for entry in source.entries]
    return source.paths if isinstance(source, ImageFiles) else []


def _part(source: Any, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    if isinstance(source, ImageFiles):
        part = ImageFiles([source.paths[i] for i in chosen])
        part.labels = None if source.labels is None else source.labels[chosen]
        part.masks = None if source.masks is None else [source.masks[i] for i in chosen]
        part.classes = source.classes
        return part
    if isinstance(source, tuple | list):
        return tuple(_part(each, chosen) for each in source)
    if isinstance(source, Tensor):
        return source[torch.from_numpy(chosen)]
    return source[chosen] if isinstance(source, np.ndarray) else Subset(source, chosen.tolist())


def source_problems(path: str, name: str, args: Mapping[str, Any], masks: str | None) -> list[str]:
    """What is wrong with the name of data at `path`: a folder, a .csv file or package.module:callable."""
    if is_reference(name):
        return [] if masks is None else [f"{path}: masks belong to folders of images; {name} has to give its own"]
    problems = []
    if args:
        given = ", ".join(args)
        problems.append(f"{path}: {name} is read as a folder or .csv file, which takes no args ({given})")
    where = Path(name)
    if not where.exists():
        hint = "" if ":" in name or "/" in name else "; a callable is named package.module:callable"
        problems.append(f"{path}: {name} does not exist (looked in {Path.cwd()}){hint}")
    elif not where.is_dir() and where.suffix.lower() != ".csv":
        problems.append(f"{path}: {name} is neither a folder nor a .csv file")
    if masks is not None and not Path(masks).is_dir():
        problems.append(f"{path}: the masks' folder {masks} does not exist")
    return problems


def image_files(source: str, masks: str | None, classes: list[str] | None) -> ImageFiles:
    """Image files as a configuration means them: of pictures with masks, the masks are the target.

    Labels beside them (a table's column, folders that part the pictures) would be one more input of the model.
    """
    files = ImageFiles(source, masks=masks, classes=classes)
    if files.masks is not None and files.labels is not None:
        log.info("%s: masks are the target; labels beside them are left out", source)
        files.labels = files.classes = None
    return files


def _source(
    path: str,
    name: str,
    args: dict[str, Any],
    masks: str | None,
    classes: list[str] | None = None,
    clips: dict[str, Any] | None = None,
) -> Any:
    for problem in source_problems(path, name, args, masks):
        raise InputError(problem)
    if is_reference(name):
        return called(path, found(path, name), args)
    try:
        if clips is not None:
            return VideoClips(name, classes=classes, **clips)
        return image_files(name, masks, classes)
    except (InputError, OSError) as error:
        raise InputError(f"{path}: {error}") from error


def _clips(data: DataConfig, seed: int, *, training: bool) -> dict[str, Any] | None:
    """What `VideoClips` is to be made with; None where the data are no videos."""
    if data.video is None:
        return None
    wanted = data.video.model_dump() if training or data.val_video is None else data.val_video.model_dump()
    if not training and data.val_video is None:
        wanted["jitter"] = False
    size = (data.size, data.size) if isinstance(data.size, int) else data.size
    return {
        **wanted, "size": size, "seed": seed, "quality": data.quality, "cache": data.cache, "on_error": data.on_error
    }  # fmt: skip


def _feed(
    source: Any, data: DataConfig, device: torch.device, augment: GPUAugmentation | None, *, seed: int, training: bool
) -> Feed:
    name = "data.source" if training else "data.val_source"
    if isinstance(source, Feed | DataLoader) or not _has_samples(source):
        return as_feed(source, device, name=name, seed=seed)
    if data.batch_size == "auto":
        raise InputError(
            "data.batch_size: 'auto' has to be made a number first: `fulltilt train` does that, "
            "and fulltilt.tune.settle_batch_size(config)"
        )
    options: dict[str, Any] = {
        "batch_size": data.batch_size if training else data.val_batch_size or data.batch_size,
        "device": device,
        "shuffle": data.shuffle and training and not isinstance(source, IterableDataset),
        "seed": seed,
        "drop_last": data.drop_last and training,
        "num_workers": data.num_workers,
        "prefetch": data.prefetch,
    }
    if isinstance(source, ImageFiles):
        if data.num_workers == 0:
            log.info("data.num_workers: 0 is taken as 1: image files are decoded in a process of their own")
            options["num_workers"] = 1
        options |= {"augment": augment, "quality": data.quality, "channels": data.channels, "on_error": data.on_error}
        options["cache"] = data.cache
        if data.features is not None:
            options["features"] = found("data.features", data.features)
    elif data.video is None:
        if isinstance(source, VideoClips) and data.on_error == "skip":  # of a callable, which can't know of it
            source.on_error = data.on_error
        if training and (ignored := _without_use(source, data)):
            keys = ", data.".join(ignored)
            raise InputError(f"data.{keys}: only for image files; {data.source} gives its own samples")
    return called(name, feed, options, source)  # type: ignore[no-any-return]


def _without_use(source: Any, data: DataConfig) -> list[str]:
    """Keys that would be passed over. One that says what holds without it is none: a run's config.yaml has them all."""
    keys = [key for key in _OF_FILES if key != "on_error" or not isinstance(source, VideoClips)]
    return [key for key in keys if getattr(data, key) != DataConfig.model_fields[key].default]


def _has_samples(source: Any) -> bool:
    """Whether a feed can put its samples into batches; anything else gives batches itself."""
    if isinstance(source, Dataset | ImageFiles | Tensor | np.ndarray):
        return True
    if isinstance(source, Sequence):
        return len(source) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in source)
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")
