"""Batches of clips that are made in two places: who makes which, and how they are put together again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fulltilt.feed.clips.side import ClipSide, Part, label_of, pixels_of
from fulltilt.feed.datasets.shelf import Request
from fulltilt.feed.order import Step


def for_the_gpu(videos: Sequence[int], wanted: int, takes: Callable[[int], bool]) -> list[int]:
    """Positions of so many clips of a batch, going by each one's video: all of a video's, as far as that comes out."""
    groups: dict[int, list[int]] = {}
    for position, video in enumerate(videos):
        if takes(video):
            groups.setdefault(video, []).append(position)
    chosen: list[int] = []
    for group in groups.values():
        if len(chosen) + len(group) <= wanted:
            chosen += group
    rest = [position for group in groups.values() for position in group if position not in set(chosen)]
    return sorted(chosen + rest[: wanted - len(chosen)])


class Splitter:
    """Shares each batch out between the workers and the GPU, by the share that is set when it is begun."""

    def __init__(self, clips: int) -> None:
        """
        Args:
            clips: per video.
        """
        self._clips = clips
        self.share = 0.0
        self.side: ClipSide | None = None
        self._parts: deque[tuple[Part | None, float]] = deque()
        """What goes with the batches that the workers have been asked for, and the share at that time."""
        self._owed = 0.0

    def begin(self) -> None:
        """What was under way is dropped."""
        for part, _ in self._parts:
            if part is not None and self.side is not None:
                part.dropped = True
                self.side.release(part)
        self._parts.clear()

    def requests(self, steps: Iterator[Step], given: deque[Step]) -> Iterator[Request]:
        """What the workers are to make."""
        for step in steps:
            given.append(step)
            keys = [(step.epoch, number) for number in step.indices.tolist()]
            chosen = self._chosen(keys)
            part = None
            if chosen and self.side is not None:
                part = self.side.submit([keys[position] for position in chosen], chosen)
            self._parts.append((part, self.share))
            left = set(range(len(keys))).difference(chosen)
            yield Request([keys[position] for position in sorted(left)])

    def joined(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The workers' batches with what goes with them, labels put together; to be moved, and then to be `whole`."""
        for pixels, labels, there in batches:
            part, share = self._parts.popleft()
            if part is not None and self.side is not None:
                try:
                    part.wait()
                finally:
                    self.side.release(part)
            yield joint(pixels, labels, there, part, share)

    def _chosen(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        side = self.side
        if side is None or not self.share:
            return []
        self._owed += self.share * len(keys)  # a batch of 8 has no sixteenths
        wanted = min(round(self._owed), len(keys))
        chosen = for_the_gpu([number // self._clips for _, number in keys], wanted, side.takes)
        self._owed = min(self._owed - len(chosen), 1.0)
        return chosen


def joint(pixels: Tensor | None, labels: Tensor | None, there: Tensor, part: Part | None, share: float) -> Any:
    """The CPU's clips, their places, all labels, and what makes a whole of them.

    `there` says which of the clips that the workers were asked for they gave. Places are those among clips that were
    not left out.
    """
    samples = [] if part is None else part.samples
    positions = set() if part is None else set(part.positions)
    total = len(there) + len(samples)
    by_cpu = [position for position in range(total) if position not in positions]
    kept_cpu = [position for position, good in zip(by_cpu, there.tolist(), strict=True) if good]
    kept_gpu = {} if part is None else {p: s for p, s in zip(part.positions, samples, strict=True) if s is not None}
    kept = sorted([*kept_cpu, *kept_gpu])
    place = {position: number for number, position in enumerate(kept)}
    clips = [(place[position], pixels_of(sample)) for position, sample in kept_gpu.items()]
    told = {place[position]: label for position, s in kept_gpu.items() if (label := label_of(s)) is not None}
    if labels is not None:
        told |= dict(zip((place[position] for position in kept_cpu), labels.unbind(), strict=True))
    merged = torch.stack([told[number].cpu() for number in sorted(told)]) if told else None
    places = torch.tensor([place[position] for position in kept_cpu], dtype=torch.int64)
    return pixels, places, merged, Whole(clips, [] if part is None else part.ready, kept, share)


class Whole:
    """What a joint batch becomes once its host part is on the device."""

    def __init__(
        self, clips: list[tuple[int, Tensor]], ready: list[torch.cuda.Event], positions: list[int], share: float
    ) -> None:
        self._clips, self._ready, self.share = clips, ready, share
        self.positions, self.count = positions, len(positions)
        """Which of the clips that were asked for are in it."""

    def batch(self, pixels: Tensor | None, places: Tensor, labels: Tensor | None) -> Any:
        """Clips in their order, with labels where there are any; None where all were left out."""
        if not self.count:
            return None
        images = self._images(pixels, places)
        return images if labels is None else (images, labels)

    def _images(self, pixels: Tensor | None, places: Tensor) -> Tensor:
        if not self._clips:
            assert pixels is not None
            return pixels
        first = self._clips[0][1]
        if first.is_cuda:
            stream = torch.cuda.current_stream(first.device)
            for event in self._ready:
                stream.wait_event(event)
            for _, clip in self._clips:
                clip.record_stream(stream)
        images = first.new_empty((self.count, *first.shape))
        if pixels is not None:
            images.index_copy_(0, places, pixels)
        for place, clip in self._clips:
            images[place].copy_(clip)
        return images
