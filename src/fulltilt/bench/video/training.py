"""The video recipe's model in training: from a batch that is on the device (its limit), from a cache, from files.

Videos, clips and the step are the recipe's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fulltilt.bench.ground import finish, said
from fulltilt.bench.video.clips import rate_of, settle
from fulltilt.bench.video.figures import OF_LIMIT, Case
from fulltilt.cache import CacheSettings
from fulltilt.cache.video import build_videos
from fulltilt.feed import VideoClips, feed
from fulltilt.recipes.video.data import SEGMENTS, make_videos
from fulltilt.recipes.video.drawing import ACTIONS
from fulltilt.recipes.video.loss import detection_loss
from fulltilt.recipes.video.model import Detector


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Videos, clips and model."""

    videos: int
    frames: int
    height: int
    width: int
    length: int
    size: int
    clips: int
    batch: int
    warm: int = 6
    """Steps before anything is timed: kernels are compiled, batches that were made ahead are used up."""
    workers: int | None = None
    """None leaves their number to the feed."""
    model: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def large(cls) -> Self:
        """As the recipe has them, but fewer videos: each clip is drawn anew all the same."""
        return cls(videos=16, frames=1536, height=240, width=320, length=768, size=160, clips=2, batch=4)

    @classmethod
    def small(cls) -> Self:
        model = {"widths": (16, 32), "blocks": 1, "hidden": 32, "dilations": (1, 2)}
        return cls(
            videos=2,
            frames=96,
            height=32,
            width=48,
            length=16,
            size=32,
            clips=2,
            batch=2,
            warm=2,
            workers=1,
            model=model,
        )


def training(
    folder: Path,
    course: Course,
    device: str,
    seconds: float,
    *,
    settle_seconds: float,
    has_targets: bool,
    say: Callable[[str], None],
) -> Iterator[Case]:
    """The limit, taken before and after the others, and how near they come to it.

    Each case comes as soon as it is measured, and all of them again at the end, against the limit's better figure. One
    that fails is its own line, and the others go on.
    """
    shape = f"{course.length} frames of {course.size}²"
    limit = Case(part="train", key="limit", title=f"training on {shape}: its limit", unit="clips")
    say("train: videos are made")
    try:
        home = make_videos(
            course.videos, frames=course.frames, height=course.height, width=course.width, seed=0, root=str(folder)
        )
        cache = folder / "cache"
        build_videos(cache, sorted(home.glob("*.mp4")), settings=CacheSettings(size=course.size))
        step = _Step(course, device)
        resident = _resident(_source(home, course), course, device)
        say("train: its limit")
        limit = replace(limit, per_second=_rate(step, repeat(resident), device, seconds, course.warm))
    except Exception as error:
        yield replace(limit, problem=said(error))
        return
    yield limit
    cached = _Way(
        key="cached", title="from cached clips", options={"cache": cache}, least=OF_LIMIT if has_targets else None
    )
    files = _Way(key="files", title="from files", options={"quality": "fast"})

    def measured(way: _Way) -> Case:
        say(f"train: {way.key}")
        case = Case(
            part="train", key=way.key, title=f"training on {shape} {way.title}", unit="clips", at_least=way.least
        )
        try:
            rate, notes = _fed(step, _source(home, course, **way.options), course, device, seconds, way, settle_seconds)
        except Exception as error:
            return replace(case, problem=said(error))
        return replace(case, per_second=rate, notes=notes)

    found: list[Case] = []
    for way in (cached, files):
        found.append(measured(way))
        yield _against(limit, found[-1])
    again = _rate(step, repeat(resident), device, seconds, course.warm)
    limit = replace(limit, per_second=max(limit.per_second or 0.0, again))
    yield limit
    yield from (_against(limit, case) for case in found)
    if device != "cpu":
        shared = replace(files, key="files_shared", title="from files, NVDEC beside the CPU", share="auto", patience=5)
        yield _against(limit, measured(shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Where clips come from."""

    key: str
    title: str
    options: dict[str, Any]
    share: float | Literal["auto"] = 0.0
    """The GPU's, of decoding."""
    patience: int = 1
    """How many times as long as others it may look for its balance: clips are long, and so is each trial."""
    least: float | None = None


def _against(limit: Case, case: Case) -> Case:
    return (
        case
        if case.per_second is None or not limit.per_second
        else replace(case, times=case.per_second / limit.per_second)
    )


class _Step:
    """Forward, loss, backward, optimizer; compiled and in bf16 on a GPU."""

    def __init__(self, course: Course, device: str) -> None:
        self._half = device != "cpu"
        self._kind = torch.device(device).type
        model = Detector(len(ACTIONS), **course.model).to(device)
        trained = [weights for weights in model.parameters() if weights.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=self._half or None)
        self._forward: Any = torch.compile(model) if self._half else model

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        with torch.autocast(self._kind, torch.bfloat16, enabled=self._half):
            loss = detection_loss(self._forward(images), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _source(home: Path, course: Course, **options: Any) -> VideoClips:
    return VideoClips(
        home / SEGMENTS,
        length=course.length,
        size=(course.size, course.size),
        clips=course.clips,
        temporal=True,
        classes=ACTIONS,
        **options,
    )


def _resident(source: VideoClips, course: Course, device: str) -> tuple[Tensor, Tensor]:
    images, labels = source.collate(source.__getitems__(range(course.batch)))
    return images.to(device), labels.to(device)


def _fed(
    step: _Step,
    source: VideoClips,
    course: Course,
    device: str,
    seconds: float,
    way: _Way,
    settle_seconds: float,
) -> tuple[float, dict[str, Any]]:
    """Clips per second with what the feed finds by itself, or has tried so far."""
    with feed(
        source,
        batch_size=course.batch,
        shuffle=True,
        num_workers=course.workers,
        device=device,
        gpu_share=way.share,
    ) as batches:

        def stepped() -> Iterator[Any]:
            while True:
                for images, labels in batches:
                    step(images, labels)
                    yield images

        giving = stepped()
        settled = settle(batches, giving, way.patience * settle_seconds)
        rate = rate_of(giving, device, seconds, workers=batches.stats()["workers"])
        stats, frames = batches.stats(), source.frames
        notes = {name: stats.get(name) for name in ("workers", "worker_kind", "gpu_share", "bottleneck")}
        split = getattr(batches, "split", None)
        notes["decoder_threads"] = None if split is None else split.value.threads
        notes["settled"] = settled
        if frames.given:
            notes["decoded_per_frame"] = round(frames.decoded / frames.given, 2)
        return rate, {name: value for name, value in notes.items() if value is not None}


def _rate(
    step: Callable[[Tensor, Tensor], None], batches: Iterator[Any], device: str, seconds: float, warm: int
) -> float:
    """Clips per second."""
    for _ in range(warm):
        step(*next(batches))
    finish(device)
    began, given = time.perf_counter(), 0
    while not given or time.perf_counter() - began < seconds:
        images, labels = next(batches)
        step(images, labels)
        given += len(images)
    finish(device)
    return given / (time.perf_counter() - began)
