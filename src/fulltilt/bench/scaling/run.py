"""The points, one after the other: the same photos, model and feed as in `fulltilt bench feed`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.bench.feed.figures import Rate
from fulltilt.bench.feed.loader import Photos, loading
from fulltilt.bench.feed.material import bytes_needed, make_in_parallel, workplace
from fulltilt.bench.feed.measure import confined, endless, measure
from fulltilt.bench.feed.models import CLASSES, Step, resnet50, small_classifier
from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.bench.scaling.figures import LIMIT, Point, ScalingBench
from fulltilt.feed import Feed, ImageFiles, feed
from fulltilt.machine.cores import read_cores

_LOADER_AT = (4, 8, 16)
"""Cores at which a DataLoader has a point: its workers take ten seconds to start, and with fewer cores half a minute
to warm up."""
NO_GPU = "Without an NVIDIA GPU that torch can use, small photos and a tiny model were run on the CPU."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes and lengths of a run."""

    device: str
    photos: int
    photo_size: tuple[int, int]
    photo_bytes: int
    batch: int
    """Where something else is varied."""
    side: int
    cores: tuple[int, ...]
    batches: tuple[int, ...]
    sides: tuple[int, ...]
    warm_steps: int
    seconds: float
    """Of a point."""
    compiled: bool
    """The step under the cores' curve; under the others it would be compiled anew for each point."""

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"


FULL = Scale(
    device="cuda", photos=4096, photo_size=(500, 375), photo_bytes=80_000, batch=256, side=224,
    cores=(1, 2, 4, 8, 12, 16), batches=(16, 32, 64, 128, 256, 512), sides=(64, 128, 192, 256, 320),
    warm_steps=8, seconds=2.0, compiled=True,
)  # fmt: skip
ON_CPU = Scale(
    device="cpu", photos=64, photo_size=(160, 120), photo_bytes=12_000, batch=8, side=32,
    cores=(1, 2, 4), batches=(4, 8), sides=(16, 32), warm_steps=1, seconds=0.2, compiled=False,
)  # fmt: skip


def measure_scaling(
    *, only: Sequence[str], scale: Scale | None = None, folder: Path | None = None, say: Say,
    keep: Callable[[ScalingBench], None] = lambda _: None,
) -> ScalingBench:  # fmt: skip
    """Everything that this machine can run; `keep` has what there is after each point."""
    began = time.monotonic()
    scale = scale or (FULL if torch.cuda.is_available() else ON_CPU)
    machine = machine_facts({"torchvision": "torchvision", "simplejpeg": "simplejpeg"})
    points: list[Point] = []

    def so_far() -> ScalingBench:
        return ScalingBench(
            machine=machine,
            date=now(),
            workloads={part: _about(part, scale) for part in only},
            cases=tuple(points),
            seconds=time.monotonic() - began,
            problem=None if scale.gpu else NO_GPU,
        )

    cores = read_cores().usable
    needed = bytes_needed(scale.photos, scale.photo_size, scale.photo_bytes)
    with workplace(folder, needed_bytes=needed) as place:
        say(f"making {scale.photos} photos")
        paths, _ = make_in_parallel(
            place / "photos", scale.photos, size=scale.photo_size, target_bytes=scale.photo_bytes, processes=cores
        )
        files = ImageFiles(paths, labels=[index % CLASSES for index in range(len(paths))])
        curves = _Curves(files, scale, cores=cores, say=say)
        for part in only:
            for point in curves.of(part):
                points.append(point)
                keep(so_far())
    return so_far()


class _Curves:
    """Each part is a walk along its x."""

    def __init__(self, files: ImageFiles, scale: Scale, *, cores: int, say: Say) -> None:
        self._files, self._scale, self._cores, self._say = files, scale, cores, say

    def of(self, part: str) -> Iterator[Point]:
        """A part that can't even begin is one point with its problem, and the next goes on."""
        try:
            yield from getattr(self, part)()
        except Exception as error:
            yield Point(part=part, series=LIMIT, x=0, problem=said(error))

    def cores(self) -> Iterator[Point]:
        """The limit needs no cores for loading: it is one level, measured once."""
        scale = self._scale
        step = self._step(compiled=scale.compiled)
        counts = [count for count in scale.cores if count <= self._cores]
        level = self._limit("cores", counts[-1], step, scale.batch, scale.side)
        for count in counts:
            yield replace(level, x=count)
            workers = max(1, count - 1)
            yield self._fed("cores", count, step, cores=count, num_workers=workers)
            if scale.gpu:
                yield self._fed("cores", count, step, series="gpu", cores=count, num_workers=workers, gpu_share=1.0)
            if scale.gpu and count in _LOADER_AT:
                yield self._loaded("cores", count, step, cores=count)

    def batch(self) -> Iterator[Point]:
        step = self._step(compiled=False)
        for size in self._scale.batches:
            yield self._limit("batch", size, step, size, self._scale.side)
            yield self._fed("batch", size, step, batch=size)

    def size(self) -> Iterator[Point]:
        step = self._step(compiled=False)
        for side in self._scale.sides:
            yield self._limit("size", side, step, self._scale.batch, side)
            yield self._fed("size", side, step, side=side)

    def _step(self, *, compiled: bool) -> Step:
        gpu = self._scale.gpu
        return Step(resnet50()[0] if gpu else small_classifier(), self._scale.device, half=gpu, compiled=compiled)

    def _limit(self, part: str, x: int, step: Step, batch: int, side: int) -> Point:
        def run() -> Rate:
            with self._feed(batch=batch, side=side) as it:
                held = tuple(tensor.clone() for tensor in next(iter(it)))
            return self._measured(repeat(held), step)

        return self._point(part, LIMIT, x, run)

    def _fed(
        self, part: str, x: int, step: Step, *, series: str = "feed", cores: int | None = None, **options: Any
    ) -> Point:
        def run() -> Rate:
            fewer: AbstractContextManager[None] = nullcontext() if cores is None else confined(cores)
            with fewer, self._feed(**options) as it:
                return self._measured(endless(it), step, feed=it)

        return self._point(part, series, x, run)

    def _loaded(self, part: str, x: int, step: Step, *, cores: int) -> Point:
        def run() -> Rate:
            scale, labels = self._scale, self._files.labels
            assert labels is not None
            photos = Photos(self._files.paths, [int(label) for label in labels], scale.side, as_bytes=True)
            with (
                confined(cores),
                loading(photos, batch=scale.batch, workers=cores, device=scale.device, half=scale.gpu) as batches,
            ):
                return self._measured(batches, step, warm=2 * cores)

        return self._point(part, "loader", x, run)

    def _measured(self, batches: Iterator[Any], step: Step, *, feed: Feed | None = None, warm: int = 0) -> Rate:
        scale = self._scale
        rate = measure(
            batches, step, device=scale.device, warm=max(warm, scale.warm_steps), steps=10**9, seconds=scale.seconds,
            feed=feed,
        )  # fmt: skip
        step.check()
        return rate

    def _feed(self, *, batch: int | None = None, side: int | None = None, **options: Any) -> Feed:
        scale = self._scale
        augment = GPUAugmentation(
            0.5, size=side or scale.side, normalize="imagenet", channels_last=True,
            dtype=torch.bfloat16 if scale.gpu else torch.float32,
        ).to(scale.device)  # fmt: skip
        return feed(
            self._files, batch_size=batch or scale.batch, device=scale.device, shuffle=True, drop_last=True,
            augment=augment, quality="fast",
            **{"num_workers": max(1, self._cores - 1), "gpu_share": 0.0, **options},
        )  # fmt: skip

    def _point(self, part: str, series: str, x: int, run: Callable[[], Rate]) -> Point:
        """A point that fails is its own line, and the others go on."""
        self._say(f"{part}: {x}, {series}")
        try:
            rate = run()
            return Point(
                part=part, series=series, x=x, samples_per_second=rate.samples_per_second, wait_share=rate.wait_share,
                cpu_cores=rate.cpu_cores,
            )  # fmt: skip
        except Exception as error:
            problem = said(error)
        gc.collect()
        return Point(part=part, series=series, x=x, problem=problem)


def _about(part: str, scale: Scale) -> str:
    model = "ResNet-50, bf16" if scale.gpu else "a small CNN"
    compiled = ", compiled" if scale.compiled and part == "cores" else ""
    fixed = {
        "cores": f"{scale.side}², batch {scale.batch}",
        "batch": f"{scale.side}²",
        "size": f"batch {scale.batch}",
    }
    width, height = scale.photo_size
    return f"{model}{compiled}, {fixed[part]}, JPEG of about {width}×{height}, {scale.photo_bytes // 1000} KB"
