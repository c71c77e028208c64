"""The peer: a DataLoader whose workers decode with Pillow and transform each sample on the CPU."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from fulltilt.augment.settings import IMAGENET_MEAN, IMAGENET_STD
from fulltilt.machine.software import is_installed

_MEAN, _STD = (np.asarray(values, np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))


class Photos(Dataset[Any]):
    """Random resized crop, flip, normalise: by torchvision where it can be imported, else by Pillow and NumPy."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], crop: int, *, as_bytes: bool = False) -> None:
        """
        Args:
            as_bytes: 8-bit pixels, a quarter of the memory to hand over and to copy; normalised on the device.
        """
        self._paths, self._labels, self._crop, self._as_bytes = list(paths), list(labels), crop, as_bytes
        self._transform: Any = None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._transform is None:  # made in the worker
            self._transform = _torchvision(self._crop, as_bytes=self._as_bytes) or self._with_pillow
        with Image.open(self._paths[index]) as image:
            return self._transform(image.convert("RGB")), self._labels[index]

    def _with_pillow(self, image: Image.Image) -> Tensor:
        cut = image.resize((self._crop,) * 2, Image.Resampling.BILINEAR, box=crop_box(*image.size, random.Random()))
        if random.random() < 0.5:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self._as_bytes:
            return torch.from_numpy(np.ascontiguousarray(np.asarray(cut).transpose(2, 0, 1)))
        values = np.asarray(cut, np.float32) / 255
        return torch.from_numpy(np.ascontiguousarray(((values - _MEAN) / _STD).transpose(2, 0, 1)))


def crop_box(width: int, height: int, draw: random.Random) -> tuple[float, float, float, float]:
    """Left, upper, right and lower of a random resized crop: 8 to 100 % of the area, sides 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = draw.randint(0, width - w), draw.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side


@contextmanager
def loading(
    dataset: Dataset[Any], *, batch: int, workers: int, device: str, half: bool = False
) -> Iterator[Iterator[tuple[Tensor, ...]]]:
    """Endless batches on the device, as bf16 in channels_last where `half`; workers end with the context.

    With workers: pinned, kept from epoch to epoch, copied without waiting; without: as a first script has it.
    """
    options: dict[str, Any] = {}
    samples = len(dataset)  # type: ignore[arg-type]  # only an iterable one has no length
    if workers:
        # Forked from a clean server: this process has threads and CUDA, which a fork would carry into the workers.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        options = {
            "multiprocessing_context": context,
            "worker_init_fn": functools.partial(_stay_on, os.sched_getaffinity(0)),
            "persistent_workers": True,
            "pin_memory": device != "cpu",
            "prefetch_factor": 4,
        }
    batches: Any = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        loader = DataLoader(
            dataset, batch_size=batch, sampler=_Endless(samples), drop_last=True, num_workers=workers, **options
        )
        batches = iter(loader)
    try:
        yield _on_device(batches, device, half=half, wait=not workers)
    finally:
        # Deleting it would do the same, but a traceback may hold it, and the next case needs the cores.
        stop = getattr(batches, "_shutdown_workers", None)
        if stop is not None:
            stop()


class _Endless(Sampler[int]):
    """One shuffle after the other as a single epoch. At the end of each the workers would idle, which of a real data
    set's time is little, and of a few thousand samples' most."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self._samples).tolist()


def _stay_on(cores: set[int], _worker: int) -> None:
    """The cores that the loop has now: the server that workers are forked from has those that it was started with."""
    os.sched_setaffinity(0, cores)


def _on_device(batches: Any, device: str, *, half: bool, wait: bool) -> Iterator[tuple[Tensor, ...]]:
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) * 255 for values in (IMAGENET_MEAN, IMAGENET_STD))
    for images, labels in batches:
        moved = images.to(device, non_blocking=not wait)
        if moved.dtype == torch.uint8:
            moved = (moved.float() - mean) / std
        if half:  # as our own feed gives them: the compiled step would be compiled again for anything else
            moved = moved.to(torch.bfloat16, memory_format=torch.channels_last)
        yield moved, labels.to(device, non_blocking=not wait)


def way() -> str:
    """Who transforms here."""
    return "Pillow and torchvision's transforms" if _torchvision(1) else "Pillow and NumPy"


def _torchvision(crop: int, *, as_bytes: bool = False) -> Any:
    """Its transforms, or None where it is missing or built for another torch."""
    if not is_installed("torchvision"):
        return None
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError):
        return None
    cut = [transforms.RandomResizedCrop(crop), transforms.RandomHorizontalFlip()]
    if as_bytes:
        return transforms.Compose([*cut, transforms.PILToTensor()])
    return transforms.Compose([*cut, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
