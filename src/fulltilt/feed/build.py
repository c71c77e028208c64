"""`feed`: from a source and a few wishes to the feed that fits them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fulltilt.cache import CacheSettings
from fulltilt.errors import InputError
from fulltilt.feed.base import Feed
from fulltilt.feed.clips.clip_feed import ClipFeed
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.clips.splits import decoder_split
from fulltilt.feed.datasets.dataset_feed import DatasetFeed
from fulltilt.feed.datasets.hosting import Hosting
from fulltilt.feed.datasets.loader_feed import LoaderFeed, goes_own_way
from fulltilt.feed.datasets.prepare import PROBED, free_here, prepare
from fulltilt.feed.images.caching import AutoCache, default_root
from fulltilt.feed.images.catalog import Catalog
from fulltilt.feed.images.features import FeatureTable
from fulltilt.feed.images.file_feed import FileFeed
from fulltilt.feed.images.files import ImageFiles
from fulltilt.feed.order import Order
from fulltilt.feed.tensor_feed import TensorFeed, as_tensors
from fulltilt.feed.wishes import (
    are_tensors,
    augmentation_for,
    built_cache,
    check_choice,
    check_depths,
    check_meant_for_files,
    check_not_meant_for,
    check_source,
    clip_share_of,
    gpu_share_of,
)
from fulltilt.machine.cores import read_cores
from fulltilt.machine.decision import Decision
from fulltilt.machine.device import named_device
from fulltilt.machine.ranks import rank, told_local_world, world


def feed(
    source: Any,
    *,
    batch_size: int | None = None,
    device: str | torch.device = "auto",
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    augment: Callable[..., Any] | None = None,
    size: int | tuple[int, int] | None = None,
    num_workers: int | Literal["auto"] | None = None,
    worker_kind: Literal["auto", "processes", "threads"] = "auto",
    prefetch: int | Literal["auto"] = "auto",
    device_prefetch: int = 1,
    in_order: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    quality: Literal["exact", "fast"] = "exact",
    gpu_share: float | Literal["auto"] = "auto",
    channels: int = 3,
    cache: str | os.PathLike[str] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    features: Callable[[torch.Tensor], Any] | None = None,
) -> Feed:
    """Batches of `source` on the device, in order, ahead of the step that uses them.

    Args:
        source: `ImageFiles`; `VideoClips`; a data set or a DataLoader (which keeps its own order, workers and batch
            size); or tensors or arrays in memory (one, or a tuple of one length).
        augment: for image files a `GPUAugmentation` (in `eval()` mode for validation); the feed sets its epoch. For
            the others a `GPUAugmentation` (images come first in a batch; what has their height and width is their
            masks) or a function of the batch.
        size: output size of image files without `augment`.
        num_workers: decoders of image files, workers of a data set. "auto" looks for the smallest number that trains as
            fast as any, beginning with every usable core but one, or with a DataLoader's own number. A data set may
            have 0. None is "auto", except that a DataLoader is kept as it is and an iterable data set has 1.
        worker_kind: whether a data set's workers are processes or threads; "auto" takes threads where a short look
            shows that they will do: the interpreter's lock mostly released, no random numbers that all threads share.
        prefetch: batches held in host memory, decoded or being decoded; of a data set, for each worker.
        device_prefetch: batches on the device beside the one in use.
        in_order: False gives out whichever batch is ready first.
        on_error: "raise" names the file and the cause; "skip" leaves the sample out, counts it and lists it.
        cache: a folder that `fulltilt cache build` has filled for these image files: what it holds is copied instead of
            decoded, what it lacks or what has changed since is made as it would have been. "auto" decides from what it
            measures whether the files' bytes, their pixels in memory, pixels on disk or nothing is kept.
        cache_folder: where "auto" makes caches on disk, if that pays; otherwise FULLTILT_CACHE_DIR, or the user's cache
            directory.
        features: makes a row of numbers from an image file's pixels, uint8 (C, H, W), as they are before augmentation,
            such as `fulltilt.assist.extract_features`. Threads call it, once for each file; rows are kept on disk, in
            `cache_folder` or where it would be. A batch is (images, masks, features) or (images, features, labels).
        quality: "fast" decodes JPEG with a quicker transform and upsampling; pixels differ slightly.
        gpu_share: the part of each batch that the GPU decodes, from 0 to 1. "auto" looks for the one that trains
            fastest where `quality` is "fast" (a GPU's pixels differ slightly as well), and is 0 otherwise. For
            `VideoClips` likewise, by their own `quality`.
    """
    where = named_device(device)
    check_choice("shuffle", shuffle, True, False)
    check_choice("drop_last", drop_last, True, False)
    check_choice("on_error", on_error, "raise", "skip")
    check_choice("quality", quality, "exact", "fast")
    check_choice("worker_kind", worker_kind, "auto", "processes", "threads")
    check_depths(prefetch, device_prefetch)
    check_source(source)
    if not isinstance(source, ImageFiles):
        check_meant_for_files(
            size=size is not None,
            in_order=not in_order,
            on_error=on_error != "raise",
            quality=quality != "exact",
            gpu_share=gpu_share != "auto" and not isinstance(source, VideoClips),
            channels=channels != 3,
            cache=cache is not None,
            cache_folder=cache_folder is not None,
            features=features is not None,
        )
    cores = read_cores().usable
    auto = not isinstance(num_workers, int)
    check_choice("num_workers", num_workers if auto else None, None, "auto", also="a whole number")
    if isinstance(source, DataLoader):
        if batch_size is not None or shuffle or drop_last or collate is not None or not auto:
            raise InputError(
                "a DataLoader has its own batch_size, shuffle, drop_last, collate and num_workers: leave them out "
                "(num_workers='auto' looks for a better number, beginning with its own)"
            )
        hosting = None if num_workers is None else _hosting(source, cores, worker_kind, prefetch, device_prefetch)
        return LoaderFeed(source, device=where, ahead=device_prefetch, augment=augment, hosting=hosting)
    if type(source) is TensorDataset and auto and collate is None:
        source = source.tensors
    if batch_size is None:
        raise InputError("batch_size is missing: how many samples make a batch?")
    order: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "seed": seed,
        "drop_last": drop_last,
        "rank": rank(),
        "world": world(),
    }
    workers = num_workers if isinstance(num_workers, int) else max(1, cores // told_local_world() - 1)
    if isinstance(source, ImageFiles):
        check_choice("channels", channels, 1, 3, 4)
        check_not_meant_for(
            "image files are decoded by processes and come as one batch of images",
            collate=collate is not None,
            worker_kind=worker_kind == "threads",
        )
        if workers < 1:
            raise InputError(f"num_workers={num_workers} must be at least 1, or 'auto': decoders are processes")
        return FileFeed(
            source,
            Order(length=len(source), **order),
            device=where,
            augment=augmentation_for(augment, size),
            workers=workers,
            most_workers=max(workers, cores // told_local_world()),
            slots=4 if prefetch == "auto" else max(2, prefetch),
            ahead=device_prefetch,
            quality=quality,
            channels=channels,
            in_order=in_order,
            skip_errors=on_error == "skip",
            tune=auto,
            cache=None if cache == "auto" else built_cache(cache, channels, quality),
            auto_cache=_auto_cache(cache, None if features and cache != "auto" else cache_folder, channels, quality),
            gpu_share=gpu_share_of(gpu_share, where, channels, fast=quality == "fast" and cache in (None, "auto")),
            features=_features(source, features, channels, cache_folder, cores),
        )
    if isinstance(source, IterableDataset):
        if shuffle:
            raise InputError("shuffle=True can't be met: an iterable data set comes in its own order")
        # Each worker goes through the whole of it, unless it shares itself out: more than one is for its owner to ask.
        loader = _loader(source, batch_size, 1 if auto else workers, drop_last=drop_last, collate=collate)
        return LoaderFeed(loader, device=where, ahead=device_prefetch, augment=augment)
    if isinstance(source, VideoClips):
        return _clips(
            source,
            Order(length=len(source), parts=source.clips, together=source.together if shuffle else 1, **order),
            device=where,
            cores=cores,
            kind=worker_kind,
            workers=None if auto else workers,
            prefetch=prefetch,
            ahead=device_prefetch,
            augment=augment,
            collate=collate,
            gpu_share=gpu_share,
        )
    if isinstance(source, Dataset) or (
        hasattr(source, "__getitem__") and hasattr(source, "__len__") and not are_tensors(source)
    ):
        steps = Order(length=len(source), **order)
        return DatasetFeed(
            source,
            steps,
            device=where,
            hosting=prepare(
                source,
                steps.permutation(0)[:PROBED].tolist(),
                free=free_here(cores, told_local_world()),
                batch_size=steps.largest_step,
                ahead=device_prefetch,
                kind=worker_kind,
                workers=None if auto else workers,
                depth=None if prefetch == "auto" else max(1, prefetch),
                collate=collate,
            ),
            tune=auto,
            ahead=device_prefetch,
            augment=augment,
            collate=collate,
        )
    check_not_meant_for("tensors are gathered as they are", collate=collate is not None)
    tensors = as_tensors(source)
    if len({len(tensor) for tensor in tensors}) != 1:
        raise InputError(f"tensors must be of one length, found {[len(tensor) for tensor in tensors]}")
    return TensorFeed(
        tensors, Order(length=len(tensors[0]), **order), device=where, ahead=device_prefetch, augment=augment
    )


def _loader(
    source: IterableDataset[Any],
    batch_size: int,
    workers: int,
    *,
    drop_last: bool,
    collate: Callable[[list[Any]], Any] | None,
) -> DataLoader[Any]:
    try:
        return DataLoader(source, batch_size=batch_size, drop_last=drop_last, collate_fn=collate, num_workers=workers)
    except ValueError as error:  # torch says which number is out of its range
        raise InputError(str(error)) from None


def _clips(
    source: VideoClips,
    order: Order,
    *,
    device: torch.device,
    cores: int,
    kind: Literal["auto", "processes", "threads"],
    workers: int | None,
    prefetch: int | Literal["auto"],
    ahead: int,
    augment: Callable[..., Any] | None,
    collate: Callable[[list[Any]], Any] | None,
    gpu_share: float | Literal["auto"],
) -> Feed:
    """Clips: first how many threads a decoder has, then who makes batches; with a GPU that decodes beside them or not.

    Args:
        workers: None looks for their number.
    """
    probed = order.permutation(0)[:PROBED].tolist()
    share = clip_share_of(gpu_share, device, source, collate=collate is not None)
    if share != 0.0 and kind == "auto":
        kind = "processes"  # the loop's own has the engines' threads already
    split = decoder_split(source, probed, cores=cores, ranks=told_local_world(), workers=workers)
    source = source.with_threads(split.value.threads)
    hosting = prepare(
        source,
        probed,
        free=free_here(max(1, cores // split.value.threads), told_local_world()),
        batch_size=order.largest_step,
        ahead=ahead,
        kind=kind,
        workers=workers,
        depth=None if prefetch == "auto" else max(1, prefetch),
        collate=collate or source.collate,
    )
    common: dict[str, Any] = {
        "device": device,
        "hosting": hosting,
        "tune": workers is None,
        "ahead": ahead,
        "augment": augment,
    }
    told = collate is None and source.leaves_out
    made: DatasetFeed = (
        DatasetFeed(
            source, order, collate=source.collate_told if told else collate or source.collate, told=told, **common
        )
        if share == 0.0
        else ClipFeed(source, order, gpu_share=share, **common)
    )
    made.split = split
    return made


def _auto_cache(
    wanted: str | os.PathLike[str] | None,
    folder: str | os.PathLike[str] | None,
    channels: int,
    quality: Literal["exact", "fast"],
) -> Callable[[Catalog], AutoCache] | None:
    """What will decide on a cache, if that is wanted."""
    if wanted != "auto":
        if folder is not None:
            raise InputError(
                f"cache_folder={os.fspath(folder)!r} goes with cache='auto'; a built cache is cache=folder"
            )
        return None
    settings = CacheSettings(channels=channels, quality=quality)
    return partial(AutoCache, settings=settings, root=default_root(folder), ranks=told_local_world())


def _features(
    source: ImageFiles,
    extract: Callable[[torch.Tensor], Any] | None,
    channels: int,
    folder: str | os.PathLike[str] | None,
    cores: int,
) -> FeatureTable | None:
    if extract is None:
        return None
    workers = max(1, cores // told_local_world() // 4)  # beside the decoders; once all rows are known, they rest
    return FeatureTable(
        source.paths, extract, channels=channels, folder=default_root(folder) / "features", workers=workers
    )


def _hosting(
    loader: DataLoader[Any], cores: int, kind: Literal["auto", "processes", "threads"], prefetch: Any, ahead: int
) -> Decision[Hosting]:
    """Who makes a DataLoader's batches, when the number of its workers is to be found."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise InputError("num_workers='auto' needs a DataLoader with a map-style data set and batches: leave it out")
    if goes_own_way(loader):
        raise InputError(
            f"num_workers='auto' puts workers in the place of the loader's, which would not do what the __iter__ of "
            f"{type(loader).__name__} does: leave it out"
        )
    if kind == "threads" and loader.worker_init_fn is not None:
        raise InputError("worker_kind='threads' can't be met: this DataLoader's worker_init_fn sets up processes")
    length = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 1
    return prepare(
        loader.dataset,
        np.unique(np.linspace(0, length - 1, PROBED).astype(int)).tolist(),
        free=free_here(cores, told_local_world()),
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1,
        ahead=ahead,
        kind="processes" if kind == "auto" else kind,  # as its owner has it
        own=loader.num_workers,
        depth=max(1, prefetch) if prefetch != "auto" else loader.prefetch_factor,
        collate=loader.collate_fn,
        context=loader.multiprocessing_context,
    )
