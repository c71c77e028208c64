"""What `feed` was asked for, checked: what can't be met is said before anything starts, with what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.cache import Cache
from fulltilt.errors import InputError
from fulltilt.feed.clips.clips import VideoClips
from fulltilt.feed.images.files import SUFFIXES


def check_choice(name: str, found: object, *allowed: object, also: str | None = None) -> None:
    if found not in allowed:
        choices = [*([also] if also else []), *map(repr, allowed)]
        raise InputError(f"{name}={found!r} must be {' or '.join(choices)}")


def check_depths(prefetch: object, device_prefetch: object) -> None:
    if not isinstance(device_prefetch, int) or device_prefetch < 0:
        raise InputError(f"device_prefetch={device_prefetch!r} must be a whole number, at least 0")
    if prefetch != "auto" and not (isinstance(prefetch, int) and prefetch >= 1):
        raise InputError(f"prefetch={prefetch!r} must be a whole number from 1 on, or 'auto'")


def check_source(source: Any) -> None:
    """What looks like a data set, having a length and items, but is not meant as one."""
    if isinstance(source, str | os.PathLike):
        raise InputError(
            f"{os.fspath(source)!r} is a path: feed(ImageFiles({os.fspath(source)!r}), …) feeds image files"
        )
    first = source[0] if isinstance(source, tuple | list) and source else None
    if isinstance(first, os.PathLike) or (isinstance(first, str) and first.lower().endswith(SUFFIXES)):
        raise InputError("a list of paths can't be fed as it is: feed(ImageFiles(paths), …) feeds image files")
    if isinstance(source, Mapping) and not all(number in source for number in range(len(source))):
        raise InputError(
            f"a {type(source).__name__} can't be fed: pass its tensors as a tuple, (source['x'], source['y']), "
            "or a data set whose samples are dicts"
        )


def check_meant_for_files(**given: bool) -> None:
    """Wishes that only image files can meet are not passed over in silence."""
    if names := _wished(given):
        raise InputError(f"{names}: only ImageFiles can be fed so; leave that out for other sources")


def check_not_meant_for(what: str, **given: bool) -> None:
    """Nor are those that they, or tensors, can't meet."""
    if names := _wished(given):
        raise InputError(f"{names}: {what}; only a data set can be fed so: leave that out")


def _wished(given: Mapping[str, bool]) -> str:
    return ", ".join(name for name, wished in given.items() if wished)


def are_tensors(source: Any) -> bool:
    """Tensors or arrays, alone or in a tuple or list."""
    parts = source if isinstance(source, tuple | list) else (source,)
    return len(parts) > 0 and all(isinstance(part, torch.Tensor | np.ndarray) for part in parts)


def augmentation_for(augment: Callable[..., Any] | None, size: int | tuple[int, int] | None) -> GPUAugmentation:
    if augment is None:
        if size is None:
            raise InputError("image files need an output size: pass size=(height, width), or an augment that has one")
        return GPUAugmentation(0.0, 0.0, 0.0, 0.0, size=size, dtype=torch.uint8, channels_last=True).eval()
    if not isinstance(augment, GPUAugmentation):
        raise InputError(f"augment must be a GPUAugmentation for image files, found {type(augment).__name__}")
    if augment.settings.output_size is None:
        raise InputError("augment has no output size: image files differ in size, so give it size=(height, width)")
    return augment


def built_cache(folder: str | os.PathLike[str] | None, channels: int, quality: str) -> str | None:
    """The cache's folder, if it holds what the feed would decode."""
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"cache={folder!r} must be 'auto' or the folder of a cache")
    settings = Cache.open(folder).settings
    if (settings.channels, settings.quality) != (channels, quality):
        raise InputError(
            f"the cache in {os.fspath(folder)} holds channels={settings.channels}, quality={settings.quality!r}; "
            f"this feed asks for channels={channels}, quality={quality!r}: ask for the same, or build another cache"
        )
    return os.path.abspath(folder)


def gpu_share_of(wanted: float | str, device: torch.device, channels: int, *, fast: bool) -> float | None:
    """The GPU's share of decoding JPEG, or None to look for it."""
    possible = device.type == "cuda" and channels in (1, 3)
    share = _share(wanted, possible and fast)
    if share and not possible:
        raise InputError(f"gpu_share={wanted}: {device} with {channels} channels can't decode JPEG; leave it out")
    return share


def clip_share_of(wanted: float | str, device: torch.device, source: VideoClips, *, collate: bool) -> float | None:
    """The GPU's share of decoding video, or None to look for it."""
    possible = device.type == "cuda" and not collate
    share = _share(wanted, possible and source.quality == "fast" and not source.has_cache)
    if share and device.type != "cuda":
        raise InputError(f"gpu_share={wanted}: {device} has no video engines; leave it out")
    if share and collate:
        raise InputError(f"gpu_share={wanted} goes with clips that are put together as they are: leave collate out")
    return share


def _share(wanted: float | str, looks: bool) -> float | None:
    if isinstance(wanted, str):
        check_choice("gpu_share", wanted, "auto")
        return None if looks else 0.0
    if not 0 <= wanted <= 1:
        raise InputError(f"gpu_share={wanted} must be from 0 to 1, or 'auto'")
    return float(wanted)
