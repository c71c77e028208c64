"""Frames by number on a GPU: decoded there where its engines can, otherwise by the CPU and copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fulltilt.decode.video.colour import rgb_of
from fulltilt.decode.video.index import runs_of
from fulltilt.decode.video.nvdec import Engine
from fulltilt.decode.video.planes import Planes
from fulltilt.decode.video.reader import Known, Quality, Video, sides_of
from fulltilt.decode.video.sessions import Sessions
from fulltilt.errors import DecodeError, InputError, UnavailableError
from fulltilt.machine.closing import Closing
from fulltilt.machine.decision import Decision

_TOGETHER = 16
"""Pictures whose colours are converted in one go: their sizes as floats are what it takes in memory."""


class DeviceVideo(Closing):
    """An open video whose frames are on a device. Threads that share one take turns, as with `Video`."""

    def __init__(
        self,
        path: Path,
        *,
        device: torch.device,
        threads: int = 1,
        known: Known | None = None,
        quality: Quality = "exact",
        sessions: Sessions | None = None,
    ) -> None:
        """
        Args:
            sessions: of earlier videos, to be used again; what this one takes goes back there.
        """
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UnavailableError(f"{device}: torch sees no GPU; leave device out to decode on the CPU")
        self.device, self._sessions = device, sessions
        self._video = video = Video(path, threads=threads, known=known, quality=quality)
        self.path, self.known, self.index = video.path, video.known, video.index
        self.codec, self.rate, self.height, self.width = video.codec, video.rate, video.height, video.width
        self._matrix, self._full_range = video.colours
        self._engine: Engine | None = None
        self._by_engines = 0
        """Frames that went into engines which are given up."""
        self._position: int | None = None
        self.decision = self._begin()
        """ "nvdec" or "cpu", and why."""

    def _begin(self) -> Decision[str]:
        if not has_engines(self.device):
            return Decision(value="cpu", reason=f"{self.device} has no video engines")
        try:
            self._engine = Engine(
                self._video.container,
                self.known,
                device=self.device,
                stream=new_stream(self.device),
                sessions=self._sessions,
            )
            self._stream = self._engine.stream
            if not self._engine.is_used_again:
                self._on_device([0], (self.height, self.width), stay=True)  # engines have limits of their own
        except (UnavailableError, DecodeError) as error:
            self._without_engine()
            return Decision(value="cpu", reason=str(error))
        return Decision(value="nvdec", reason=f"{self.codec} in 4:2:0 with 8 bits")

    def __len__(self) -> int:
        return len(self._video)

    @property
    def key_frames(self) -> tuple[int, ...]:
        return self._video.key_frames

    @property
    def duration_seconds(self) -> float | None:
        return self._video.duration_seconds

    def time_of(self, frame: int) -> float | None:
        return self._video.time_of(frame)

    @property
    def decoded(self) -> int:
        """Frames that decoders have been given so far, wanted or not."""
        return self._video.decoded + self._by_engines + (0 if self._engine is None else self._engine.decoded)

    def frames(self, indices: Sequence[int], *, size: tuple[int, int] | None = None, stay: bool = True) -> Tensor:
        """N×H×W×3 uint8 on the device, frame `indices[n]` at n, upright; scaled to `size` (height, width).

        They can be used on the stream that is current here. `stay` as in `Video.frames`.
        """
        numbers = self._video.checked(indices)
        target = sides_of(size) if size is not None else (self.height, self.width)
        with self._video.container.lock:
            return self._frames(numbers, target, size, stay=stay)

    def _frames(
        self, numbers: Sequence[int], target: tuple[int, int], size: tuple[int, int] | None, *, stay: bool
    ) -> Tensor:
        if self._engine is not None and numbers:
            try:
                return self._on_device(numbers, target, stay=stay)
            except UnavailableError as error:  # it has failed once: from here on the CPU
                self._without_engine()
                self.decision = Decision(value="cpu", reason=str(error))
            except DecodeError:  # the CPU's path may still have the frame, and names it if not
                self._position = None
        pixels = torch.from_numpy(self._video.frames(numbers, size=size, stay=stay)).to(self.device)
        if self._engine is not None:
            self._video.leave()  # the engine goes on in the same file
        return pixels

    def _on_device(self, numbers: Sequence[int], size: tuple[int, int], *, stay: bool) -> Tensor:
        engine = self._engine
        if engine is None:
            raise InputError(f"{self.path} is closed")
        once = sorted(set(numbers))
        known, turned = self.known, self.known.turn % 2
        inside = (size[1], size[0]) if turned else size
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            pixels = torch.empty((len(once), *inside, 3), dtype=torch.uint8, device=self.device)
            planes = Planes(
                min(_TOGETHER, len(once)),
                known.height,
                known.width,
                device=self.device,
                stream=engine.stream.cuda_stream,
            )
            done = 0
            position, self._position = self._position, None  # unknown until the pass has ended well
            last = -1
            runs = runs_of(self.index, once, position)
            for run in runs:
                for number, picture in engine.run(run, stay=stay and run is runs[-1]):
                    planes.put(picture)
                    last = number
                    if planes.is_full:
                        done = self._convert(planes, pixels, done)
            if planes.count:
                self._convert(planes, pixels, done)
            self._position = last + 1 if stay else None
            if self.known.turn:
                pixels = torch.rot90(pixels, self.known.turn, (1, 2)).contiguous()
            if once != list(numbers):
                places = {number: place for place, number in enumerate(once)}
                order = torch.from_numpy(np.array([places[number] for number in numbers])).to(self.device)
                pixels = pixels[order]
        current.wait_stream(self._stream)
        pixels.record_stream(current)
        return pixels

    def _convert(self, planes: Planes, pixels: Tensor, done: int) -> int:
        """All that are there, behind those that are done; how many that makes."""
        until = done + planes.count
        luma, chroma = planes.take()
        rgb_of(luma, chroma, pixels[done:until], matrix=self._matrix, full_range=self._full_range)
        return until

    def _without_engine(self) -> None:
        if self._engine is not None:
            self._by_engines += self._engine.decoded
            self._engine.close()
        self._engine, self._position = None, None

    def close(self) -> None:
        with self._video.container.lock:
            self._without_engine()
            self._video.close()


def has_engines(device: torch.device) -> bool:
    """Whether it is worth asking for them."""
    return device.type == "cuda"


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
