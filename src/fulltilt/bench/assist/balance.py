"""The balance on a real machine: image files feed a ResNet-50, half of the cores are taken away, and given back.

Taken away means that this process and its decoders may no longer run there, as when a container's share shrinks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from fulltilt.bench.assist.phases import FOLLOWS_SECONDS, BalanceRun, Phase
from fulltilt.bench.feed.ladder import augmentation
from fulltilt.bench.feed.material import bytes_needed, make_in_parallel, workplace
from fulltilt.bench.feed.measure import confined, endless
from fulltilt.bench.feed.models import CLASSES, Step, resnet50, small_classifier
from fulltilt.bench.feed.scale import Scale, scale_for
from fulltilt.bench.ground import Say, finish
from fulltilt.feed import Feed, ImageFiles, feed

CORES = 8
"""With more, the CPU keeps up with half of them, and there is nothing to see."""
_PHOTOS = 4096
_SETTLE_SECONDS, _LOOK_SECONDS = 60.0, 4.0
_FIXED = (0.0, 0.5, 0.75, 1.0)


def measure_balance(*, cores: int, say: Say, gpu: bool = True, pace: float = 1.0) -> BalanceRun:
    """About two minutes on a GPU.

    Args:
        pace: what all times are multiplied with.
    """
    cores, scale = min(cores, CORES), scale_for(gpu=gpu, quick=False, count=_PHOTOS)
    half = max(1, cores // 2)
    needed = bytes_needed(scale.photos, scale.photo_size, scale.photo_bytes)
    with workplace(None, needed_bytes=needed) as place, confined(cores):
        say(f"balance: making {scale.photos} photos")
        paths, _ = make_in_parallel(
            place, scale.photos, size=scale.photo_size, target_bytes=scale.photo_bytes, processes=cores
        )
        files = ImageFiles(paths, labels=[number % CLASSES for number in range(len(paths))])
        step = Step(resnet50()[0] if gpu else small_classifier(), scale.device, half=gpu, compiled=False)
        loop = _Loop(step, scale, pace)
        with loop.feed(files) as it:
            batches = endless(it)
            say(f"balance: {cores} cores")
            before = loop.phase(it, batches, cores)
            say(f"balance: {half} cores")
            with _only(half):
                taken = loop.phase(it, batches, half)
            say(f"balance: {cores} cores again")
            back = loop.phase(it, batches, cores)
        fixed = {}
        for share in _FIXED if gpu else _FIXED[:1]:
            say(f"balance: {half} cores, {share:.0%} by the GPU")
            with confined(half), loop.feed(files, num_workers=max(1, half - 1), gpu_share=share) as it:
                batches = endless(it)
                loop.rate(batches, _LOOK_SECONDS)
                fixed[share] = loop.rate(batches, _LOOK_SECONDS)
        step.check()
    return BalanceRun(before=before, taken=taken, back=back, fixed=fixed)


class _Loop:
    """A training loop over image files."""

    def __init__(self, step: Step, scale: Scale, pace: float) -> None:
        self._step, self._scale, self._pace = step, scale, pace

    def feed(self, files: ImageFiles, **options: Any) -> Feed:
        wanted = {"num_workers": "auto", "gpu_share": "auto", "quality": "fast", **options}
        return feed(
            files, batch_size=self._scale.batch, device=self._scale.device, shuffle=True, drop_last=True,
            augment=augmentation(self._scale), **wanted,
        )  # fmt: skip

    def phase(self, it: Feed, batches: Iterator[Any], cores: int) -> Phase:
        """Train until it has settled, and ten seconds at least; then look."""
        began = time.monotonic()
        self.rate(batches, FOLLOWS_SECONDS - 1)
        early = self.rate(batches, 1.0)
        settled = time.monotonic() - began
        while it.stats()["balance"] != "settled" and settled < self._pace * _SETTLE_SECONDS:
            self.rate(batches, 0.5)
            settled = time.monotonic() - began
        rate, stats = self.rate(batches, _LOOK_SECONDS), it.stats()
        return Phase(
            cores=cores,
            samples_per_second=rate,
            gpu_share=stats["gpu_share"],
            workers=stats["workers"],
            settled_seconds=settled,
            early_samples_per_second=early,
        )

    def rate(self, batches: Iterator[Any], seconds: float) -> float:
        finish(self._scale.device)
        began, samples = time.perf_counter(), 0
        while not samples or time.perf_counter() - began < self._pace * seconds:
            images, labels = next(batches)
            self._step(images, labels)
            samples += len(images)
        finish(self._scale.device)
        return samples / (time.perf_counter() - began)


@contextmanager
def _only(cores: int) -> Iterator[None]:
    """So many cores for this process, its threads and its children; as before afterwards."""
    usable = sorted(os.sched_getaffinity(0))
    with confined(cores):
        _confine_children(usable[:cores])
        try:
            yield
        finally:
            _confine_children(usable)


def _confine_children(cores: list[int]) -> None:
    for child in psutil.Process().children(recursive=True):
        for thread in Path(f"/proc/{child.pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)
