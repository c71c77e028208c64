"""The CPU's way, as most projects start: a DataLoader whose workers augment each sample, in ms per batch."""

from __future__ import annotations

import importlib
import multiprocessing
import random
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fulltilt.bench.augment.figures import Peer, Timing
from fulltilt.bench.augment.task import (
    BRIGHTNESS,
    CLASSES,
    CONTRAST,
    DEGREES,
    FLIP_PROB,
    MEAN,
    STD,
    Task,
)
from fulltilt.bench.ground import said
from fulltilt.machine.software import is_installed

WORKERS = (4, 8, 16)
_DISTINCT = 8
"""Images that each worker holds: decoding is not part of the task."""

Pixels = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Samples(Dataset[Any]):
    """Random images in memory, augmented one at a time."""

    size: int
    masks: bool
    count: int
    opencv: bool

    def __post_init__(self) -> None:
        self._held: list[tuple[Pixels, Pixels]] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not self._held:  # made in the worker: nothing large crosses to it
            draw = np.random.default_rng(0)
            for _ in range(_DISTINCT):
                image = draw.integers(0, 256, (self.size, self.size, 3), dtype=np.uint8)
                self._held.append((image, draw.integers(0, CLASSES, (self.size, self.size), dtype=np.uint8)))
        image, mask = self._held[index % _DISTINCT]
        turn = _with_opencv if self.opencv else _with_pillow
        image, label = turn(image, mask if self.masks else None, *_draw())
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return tensor if label is None else (tensor, torch.from_numpy(np.ascontiguousarray(label)))


def _draw() -> tuple[bool, float, float, float]:
    return (
        random.random() < FLIP_PROB,
        random.uniform(-DEGREES, DEGREES),
        random.uniform(1 - BRIGHTNESS, 1 + BRIGHTNESS),
        random.uniform(1 - CONTRAST, 1 + CONTRAST),
    )


def _with_opencv(
    image: Pixels, mask: Pixels | None, flip: bool, degrees: float, light: float, spread: float
) -> tuple[Pixels, Pixels | None]:
    cv2 = importlib.import_module("cv2")  # optional, and without types
    cv2.setNumThreads(0)
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    if flip:
        image, mask = cv2.flip(image, 1), None if mask is None else cv2.flip(mask, 1)
    image = cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR)
    if mask is not None:
        mask = cv2.warpAffine(mask, matrix, (width, height), flags=cv2.INTER_NEAREST)
    return _colours(image, light, spread), mask


def _with_pillow(
    image: Pixels, mask: Pixels | None, flip: bool, degrees: float, light: float, spread: float
) -> tuple[Pixels, Pixels | None]:
    from PIL import Image, ImageOps

    def turned(pixels: Pixels, how: Image.Resampling) -> Pixels:
        picture = Image.fromarray(pixels)
        return np.array((ImageOps.mirror(picture) if flip else picture).rotate(degrees, resample=how))

    image = turned(image, Image.Resampling.BILINEAR)
    if mask is not None:
        mask = turned(mask, Image.Resampling.NEAREST)
    return _colours(image, light, spread), mask


def _colours(image: Pixels, light: float, spread: float) -> Pixels:
    values = image.astype(np.float32)
    values *= light * spread / 255
    values += 0.5 - 0.5 * spread
    np.clip(values, 0.0, 1.0, out=values)
    values -= np.asarray(MEAN, dtype=np.float32)
    values /= np.asarray(STD, dtype=np.float32)
    return values


def measure_loader(workers: int, task: Task, *, cores: int, seconds: float) -> Peer:
    """Milliseconds per batch once all workers run, over about `seconds`; the copy to a GPU is not counted."""
    opencv = is_installed("cv2")
    known: dict[str, Any] = {
        "name": f"CPU, {workers} workers",
        "takes": f"{'OpenCV' if opencv else 'Pillow'}, uint8 in, float32 out, on the CPU",
        "masks": task.masks,
    }
    if workers > cores and workers != min(WORKERS):
        return Peer(**known, problem=f"skipped: {cores} cores are usable")
    try:
        batch_seconds = _steady_seconds(workers, task, opencv=opencv, seconds=seconds)
    except Exception as error:
        return Peer(**known, problem=said(error))
    return Peer(**known, timing=Timing(wall_ms=batch_seconds * 1e3))


def _steady_seconds(workers: int, task: Task, *, opencv: bool, seconds: float) -> float:
    # Forked from a clean server: this process has threads and CUDA, which a fork would carry into the workers.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    samples = Samples(size=task.size, masks=task.masks, count=task.batch * 100_000, opencv=opencv)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        loader = DataLoader(
            samples, batch_size=task.batch, num_workers=workers, prefetch_factor=2, multiprocessing_context=context
        )
        batches = iter(loader)
    # All workers start together and their first two batches lie ready: those say nothing about the rate.
    for _ in range(2 * workers):
        next(batches)
    began = time.perf_counter()
    taken = 0
    # Whole rounds, because batches are handed out to the workers in turn.
    while taken == 0 or time.perf_counter() - began < seconds:
        for _ in range(workers):
            next(batches)
        taken += workers
    spent = time.perf_counter() - began
    del batches, loader
    return spent / taken
