"""Random clips as batches on the device: through the feed, and by DataLoaders as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from fulltilt.bench.ground import finish
from fulltilt.decode.video.container import pyav
from fulltilt.decode.video.reader import Quality
from fulltilt.feed import VideoClips, feed

LENGTH = 16
_LINES = 256
_WARM = 0.4
"""Of the time that is measured, before it."""
_AHEAD = 3
"""Batches for each worker that may be under way: asked for, made, on their way to the device."""


class PerItem(Dataset[torch.Tensor]):
    """A clip for each item: open, decode, take the frames.

    `jumps`: to the key frame before it; otherwise from the beginning, as most code that one finds does. `scaled`: by
    swscale, otherwise by torch later. `alone`: each conversion is told to use one thread; otherwise PyAV starts as many
    as there are cores for each frame, in each worker.
    """

    def __init__(
        self,
        paths: list[Path],
        *,
        count: int,
        frames: int,
        size: tuple[int, int],
        jumps: bool,
        scaled: bool,
        alone: bool = False,
    ) -> None:
        self._paths, self._count, self._frames, self._size = paths, count, frames, size
        self._jumps, self._scaled, self._options = jumps, scaled, {"threads": 1} if alone else {}
        self._decoded = torch.zeros((_LINES, 2), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        """Frames decoded, frames given, by each worker."""

    @property
    def decoded_per_frame(self) -> float:
        decoded, given = self._decoded.sum(0).tolist()
        return float(decoded / max(given, 1))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> torch.Tensor:
        draw = np.random.default_rng(number)
        start = int(draw.integers(0, max(1, self._frames - LENGTH + 1)))
        found: list[torch.Tensor] = []
        with pyav().open(str(self._paths[number % len(self._paths)])) as file:
            stream = file.streams.video[0]
            if self._jumps:
                file.seek(round(start / stream.average_rate / stream.time_base), stream=stream)
            decoded = 0
            for frame in file.decode(stream):
                decoded += 1
                if round(frame.time * stream.average_rate) < start:
                    continue
                found.append(self._pixels(frame))
                if len(found) == min(LENGTH, self._frames):
                    break
        worker = torch.utils.data.get_worker_info()
        self._decoded[0 if worker is None else worker.id % _LINES] += torch.tensor([decoded, len(found)])
        return torch.stack(found)

    def _pixels(self, frame: Any) -> torch.Tensor:
        height, width = self._size
        if self._scaled:
            return torch.from_numpy(
                frame.reformat(width=width, height=height, format="rgb24", **self._options).to_ndarray()
            )
        whole = torch.from_numpy(frame.to_ndarray(format="rgb24", **self._options)).permute(2, 0, 1)[None]
        return interpolate(whole, self._size, mode="bilinear", antialias=True)[0].permute(1, 2, 0)


def feed_rate(
    paths: list[Path],
    *,
    size: int,
    batch: int,
    workers: int,
    device: str,
    seconds: float,
    cache: Path | None = None,
    quality: Quality = "exact",
    together: int = 1,
    gpu_share: float | Literal["auto"] = 0.0,
    settle_seconds: float = 0.0,
) -> tuple[float, dict[str, Any]]:
    """Clips per second through the feed, and how it was done.

    Args:
        together: clips of a video that come in one batch.
        gpu_share: "auto" first looks for it, for at most `settle_seconds`.
    """
    source = VideoClips(
        paths, length=LENGTH, size=(size, size), clips=batch, cache=cache, quality=quality, together=together
    )
    with feed(
        source, batch_size=batch, shuffle=True, num_workers=workers, device=device, gpu_share=gpu_share
    ) as batches:

        def endless() -> Iterable[Any]:
            while True:
                yield from batches

        giving = iter(endless())
        settled = settle(batches, giving, settle_seconds)
        rate = rate_of(giving, device, seconds, workers=workers)
        hosting, share = batches.hosting.value, batches.stats().get("gpu_share")  # type: ignore[attr-defined]
        notes: dict[str, Any] = {"workers": workers, "worker_kind": hosting.kind}
        if source.frames.given:
            notes["decoded_per_frame"] = round(source.frames.decoded / source.frames.given, 2)
        return rate, notes if share is None else {**notes, "gpu_share": share, "settled": settled}


def settle(batches: Any, giving: Iterator[Any], seconds: float) -> bool:
    """Take batches until the feed has found its balance, at most for so long; whether it was done by then.

    Where it was not, it goes on with the best that it has tried, and what was begun otherwise is used up.
    """
    until = time.perf_counter() + seconds
    while time.perf_counter() < until and not is_settled(batches):
        next(giving)
    done = not seconds or is_settled(batches)
    if not done:
        workers = batches.hosting.value.workers
        batches.settle() if hasattr(batches, "settle") else batches.resize(workers)
        for _ in range(_AHEAD * max(1, workers)):
            next(giving)
    return done


def is_settled(batches: Any) -> bool:
    """It looks neither for a share of the GPU nor for a number of workers."""
    if hasattr(batches, "is_settled"):
        return bool(batches.is_settled)
    return batches.decision is not None


def loader_rate(
    paths: list[Path],
    *,
    frames: int,
    size: int,
    batch: int,
    workers: int,
    device: str,
    seconds: float,
    jumps: bool,
    scaled: bool,
    alone: bool,
) -> tuple[float, float]:
    """Clips per second of a DataLoader whose items do all of it, and frames decoded for each one given."""
    dataset = PerItem(
        paths, count=10_000_000, frames=frames, size=(size, size), jumps=jumps, scaled=scaled, alone=alone
    )
    loader = DataLoader(
        dataset, batch_size=batch, shuffle=False, num_workers=workers, pin_memory=device != "cpu", prefetch_factor=2
    )
    batches = (clips.to(device, non_blocking=True) for clips in loader)
    return rate_of(batches, device, seconds, workers=workers), dataset.decoded_per_frame


def rate_of(batches: Iterable[Any], device: str, seconds: float, *, workers: int) -> float:
    """Clips per second, of whole rounds of the workers, who begin together and deliver in bursts.

    Rounds of a while come before it, one at least: with them goes what was made ahead while workers started.
    """
    given, began = 0, None
    first = time.perf_counter()
    for number, clips in enumerate(batches, 1):
        given += len(clips)
        if number % max(1, workers):
            continue
        now = time.perf_counter()
        if began is not None and now - began >= seconds:
            break
        if began is None and now - first >= seconds * _WARM:
            finish(device)
            given, began = 0, time.perf_counter()
    finish(device)
    return given / (time.perf_counter() - (first if began is None else began))
