"""Frames by their numbers: exactly those, in any order, scaled while their colours are converted."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from fulltilt.decode.video.container import Container, Course
from fulltilt.decode.video.convert import Converter, Pixels
from fulltilt.decode.video.forks import keep
from fulltilt.decode.video.index import FrameIndex, Run, runs_of
from fulltilt.errors import DecodeError, InputError
from fulltilt.machine.closing import Closing

if TYPE_CHECKING:
    import torch
    from av.video.frame import VideoFrame

    from fulltilt.decode.video.device import DeviceVideo

Quality = Literal["exact", "fast"]
_FULL = 2
"""AVCOL_RANGE_JPEG."""
MOST_THREADS = 64
"""Of a decoder. FFmpeg starts as many as it is told, each with pictures of its own, and warns of more than 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What has to be read and decoded to be known, for opening the same file again."""

    index: FrameIndex
    turn: int
    """Quarter turns, counterclockwise, that make it upright: phones write them beside the pictures."""
    height: int
    width: int
    """Of the first picture, as it is in the file."""
    pixels: str
    """FFmpeg's name for their format."""
    colours: tuple[int, bool]
    """The number of their matrix (ITU-T H.273), and whether they have the full range."""
    interlaced: bool = False
    """Its even rows show another moment than its odd ones."""


@overload
def open_video(
    path: str | PathLike[str],
    *,
    threads: int = 1,
    known: Known | None = None,
    device: None = None,
    quality: Quality = "exact",
) -> Video: ...


@overload
def open_video(
    path: str | PathLike[str],
    *,
    threads: int = 1,
    known: Known | None = None,
    device: str | torch.device,
    quality: Quality = "exact",
) -> DeviceVideo: ...


def open_video(
    path: str | PathLike[str],
    *,
    threads: int = 1,
    known: Known | None = None,
    device: str | torch.device | None = None,
    quality: Quality = "exact",
) -> Video | DeviceVideo:
    """A video's frames by number.

    Args:
        threads: decode it, on the CPU.
        known: the `known` of an earlier `Video` of the same file: opens it at once.
        device: give frames as tensors there. A GPU decodes what its engines can; `decision` says which, and why.
        quality: "fast" does without smoothing in pictures that others hardly refer to, and scales in vector code: the
            same frames, whose pixels differ slightly.
    """
    if quality not in ("exact", "fast"):
        raise InputError(f"quality={quality!r} must be 'exact' or 'fast'")
    if not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads: expected 1 to {MOST_THREADS}, found {threads!r}")
    if device is None:
        return Video(Path(path), threads=threads, known=known, quality=quality)
    import torch

    from fulltilt.decode.video.device import DeviceVideo

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device={device!r}: expected one such as 'cuda:0' ({error})") from None
    return DeviceVideo(Path(path), device=place, threads=threads, known=known, quality=quality)


def sides_of(size: Sequence[int]) -> tuple[int, int]:
    """Height and width as plain integers; InputError for what is no size."""
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise InputError(f"size: expected (height, width) with 1 or more each, found {size!r}")
    return height, width


class Video(Closing):
    """An open video. Threads that share one take turns: to decode side by side, open one for each.

    A process that is forked opens the file for itself; pickled, it is opened again where it arrives.
    """

    def __init__(self, path: Path, *, threads: int, known: Known | None, quality: Quality = "exact") -> None:
        self.path, self._threads, self._quality = path, threads, quality
        self._container = Container(path, threads=threads, fast=quality == "fast")
        try:
            self.known = known if known is not None else self._read()
            self.index, self._turn = self.known.index, self.known.turn
            stream = self._container.stream  # of the file as it is open now
            context = stream.codec_context
            self.codec: str = context.name
            self.rate: float | None = float(stream.average_rate) if stream.average_rate else None
            """Frames per second, on average."""
            sides = (self.known.height, self.known.width)
            self.height, self.width = reversed(sides) if self._turn % 2 else sides
            """As it is meant to be seen."""
            self.colours = self.known.colours
            unit = stream.time_base  # a fraction or None, or FFmpeg's own kind of number, which may be 0/1
            self._unit = Fraction(unit.numerator, unit.denominator) if unit else None
            """Of times, in seconds: a fraction, so that a time that can be written down is that very number."""
        except BaseException:
            self._container.close()
            raise
        self._convert = Converter(turn=self._turn, fast=quality == "fast")
        self._position: int | None = None
        self._course = Course()
        self._pictures: Iterator[tuple[int, VideoFrame]] = iter(())
        self._abandoned = self._container.abandoned

    def __len__(self) -> int:
        return self.index.count

    @property
    def key_frames(self) -> tuple[int, ...]:
        """Frames that can be reached without decoding others."""
        return self.index.keys

    @property
    def duration_seconds(self) -> float | None:
        """From the first frame's time to the end of the last one's."""
        times = self.index.times
        if times is None or self._unit is None:
            return None if self.rate is None else len(self) / self.rate
        shown = float((times[-1] - times[0]) * self._unit)
        return shown + (shown / (len(times) - 1) if len(times) > 1 else 1 / self.rate if self.rate else 0.0)

    @property
    def decoded(self) -> int:
        """Frames that the decoder has been given so far, wanted or not."""
        return self._container.decoded

    def time_of(self, frame: int) -> float | None:
        """When it is shown, in seconds from the first frame."""
        times = self.index.times
        if times is None or self._unit is None:
            return None if self.rate is None else frame / self.rate
        # Rounded once, by the division: 0.12 s of a table is the frame that is shown then, not the one behind it.
        return (times[frame] - times[0]) * self._unit.numerator / self._unit.denominator

    def frames(
        self,
        indices: Sequence[int],
        *,
        size: tuple[int, int] | None = None,
        out: Pixels | None = None,
        stay: bool = True,
    ) -> Pixels:
        """N×H×W×3 uint8, frame `indices[n]` at n, upright; scaled to `size` (height, width), into `out` if given.

        Where the resolution changes within the file, `size` is needed, and everything is scaled to it. `stay` leaves
        the decoder ready to go on behind the last frame; without it nothing is decoded that these frames don't need.
        """
        height, width = sides_of(size) if size is not None else (self.height, self.width)
        numbers = self.checked(indices)
        shape = (len(numbers), height, width, 3)
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape or out.dtype != np.uint8:
            raise InputError(f"out: expected uint8 {shape}, found {out.dtype} {out.shape}")
        with self._container.lock:
            self._fill(out, numbers, as_it_is=size is None, stay=stay)
        return out

    def _fill(self, out: Pixels, numbers: Sequence[int], *, as_it_is: bool, stay: bool) -> None:
        if self._abandoned != self._container.abandoned:  # a fork: where the decoder stood is the parent's
            keep(self._pictures)
            self._abandoned = self._container.abandoned
            self.leave()
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        runs = runs_of(self.index, numbers, self._position)
        for run in runs:
            for number, picture in self._run(run, stay=stay and run is runs[-1]):
                first, *others = places[number]
                if as_it_is:
                    self._check_size(number, picture)
                self._convert(picture, out[first])
                for other in others:
                    out[other] = out[first]

    @property
    def container(self) -> Container:
        """Its file. Whoever reads in it says so by `leave`."""
        return self._container

    def leave(self) -> None:
        """The decoder does not go on from where it is: somebody else reads in the file."""
        self._pictures, self._position = iter(()), None

    def close(self) -> None:
        """What it says of itself can still be asked."""
        with self._container.lock:
            self.leave()
            self._convert.forget()
            self._container.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Video, threads=self._threads, known=self.known, quality=self._quality), (self.path,)

    def checked(self, indices: Sequence[int]) -> list[int]:
        """Frames' numbers as plain integers; InputError for one that is not there."""
        try:
            numbers = [operator.index(number) for number in indices]
        except TypeError:
            raise InputError(f"{self.path}: expected frames' numbers, as [3, 7], found {indices!r}") from None
        for number in numbers:
            if not 0 <= number < len(self):
                raise InputError(f"{self.path}: no frame {number}; it has frames 0 to {len(self) - 1}")
        return numbers

    def _check_size(self, number: int, picture: VideoFrame) -> None:
        known = self.known
        if (picture.height, picture.width) != (known.height, known.width):
            self._position = None
            raise DecodeError(
                f"{self.path}: frame {number} is {picture.width}×{picture.height}, the first one "
                f"{known.width}×{known.height}; ask for all in one size (size=)"
            )

    def _run(self, run: Run, *, stay: bool) -> Iterator[tuple[int, VideoFrame]]:
        """The wanted frames of one pass. If one does not come, the decoder's place is forgotten and the frame named."""
        if run.start >= 0:
            self._place(run, stay=stay)
        else:
            new = self._course_of(run, self._position or 0, stay=stay)
            self._course.skip, self._course.left = new.skip, new.left
        wanted = iter(run.frames)
        target = next(wanted, None)
        self._position = None  # until the pass has ended well
        for number, picture in self._pictures:
            if target is None or number > target:
                break
            if number == target:
                yield number, picture
                target = next(wanted, None)
                if target is None:
                    self._position = number + 1 if stay else None
                    return
        if target is not None:
            raise DecodeError(f"{self.path}: frame {target} of {len(self)} can't be decoded: the file is damaged there")

    def _course_of(self, run: Run, start: int, *, stay: bool) -> Course:
        times = self.index.times
        if times is None:
            return Course()
        wanted = {times[frame] for frame in run.frames}
        return Course(skip=set(times[start : run.frames[-1] + 1]) - wanted, left=None if stay else wanted)

    def _place(self, run: Run, *, stay: bool) -> None:
        """So that the next pictures begin at a frame no later than the first one wanted."""
        times, start = self.index.times, run.start
        while times is not None and start > 0:
            if not self._container.seek(times[start]):
                break
            self._course = self._course_of(run, start, stay=stay)
            pictures = self._numbered(times[start])
            first = next(pictures, None)
            if first is not None and first[0] <= run.frames[0]:
                self._pictures = _chained(first, pictures)
                return
            start = self.index.key_before(start - 1)  # the file's own index led too far: one key frame earlier
        self._container.begin()
        self._course = self._course_of(run, start, stay=stay)
        self._pictures = self._numbered(None)

    def _numbered(self, since: int | None) -> Iterator[tuple[int, VideoFrame]]:
        """Pictures with their numbers. Those shown before `since` may be broken: what they need was not decoded."""
        times = self.index.times
        if times is None:
            yield from enumerate(self._container.pictures(self._course))
            return
        for picture in self._container.pictures(self._course):
            time = picture.pts
            number = self.index.number_of(time)
            if number is None or picture.is_corrupt or (since is not None and time is not None and time < since):
                continue
            yield number, picture

    def _read(self) -> Known:
        index = self._container.index()
        first = None if index.times is None else {index.times[0]}
        picture = next(self._container.pictures(Course(left=first)), None)
        if picture is None:  # it may be damaged: any other will do
            self._container.begin()
            picture = next(self._container.pictures(Course()), None)
        if picture is not None:
            turn = round(picture.rotation / 90) % 4
            self._container.begin()
            pixels = picture.format.name
            full = int(picture.color_range) == _FULL or pixels == "yuvj420p"
            return Known(
                index=index,
                turn=turn,
                height=picture.height,
                width=picture.width,
                pixels=pixels,
                colours=(int(picture.colorspace), full),
                interlaced=bool(picture.interlaced_frame),
            )
        raise DecodeError(f"{self.path}: not one frame can be decoded")


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
