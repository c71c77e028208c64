"""JPEG on the GPU, in batches, by nvJPEG.

What the engines don't decode, or decode to something else than libjpeg (`cpu_reason`), takes the CPU's path and is
copied up. All pixels come out upright, H×W×C.

A decoder has a stream of its own, which it waits for before a batch: what it is about to allocate can't be memory that
a queued kernel still reads, whatever streams the library uses inside.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from fulltilt.decode.header import Header, as_view
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.decode.nvjpeg import Ints, NvJpeg
from fulltilt.decode.orientation import flips, swaps_sides
from fulltilt.decode.recognise import probe
from fulltilt.decode.still import decode as decode_on_cpu
from fulltilt.errors import DecodeError, InputError, UnavailableError, first_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MakeBackend: TypeAlias = "Callable[[torch.device, int], Backend]"


class Backend(Protocol):
    """What decodes plain JPEGs on a device."""

    def decode(self, memory: Tensor, starts: Ints, lengths: Ints, sizes: Ints) -> Tensor:
        """Files in host memory, of N × 2 sizes as stored: their pixels, H×W×C each, one behind the other.

        RuntimeError: none of them was decoded.
        """
        ...


def available(device: torch.device | str = "cuda") -> str | None:
    """Why JPEGs can't be decoded on `device`, or None where they can. Found out by decoding one; remembered."""
    return _reason(str(device))


@functools.lru_cache(maxsize=16)
def _reason(device: str) -> str | None:
    try:
        tried(NvJpeg, _device(device), 3)
    except UnavailableError as error:
        return str(error)
    return None


def tried(make: MakeBackend, device: torch.device, channels: int) -> Backend:
    """A backend that has decoded a small JPEG right; UnavailableError with the reason where it does not."""
    grey: bytes = simplejpeg.encode_jpeg(np.full((16, 16, 3), 128, np.uint8), colorsubsampling="420")
    try:
        backend = make(device, channels)
        made = backend.decode(_joined([grey]), *_table([grey], [(16, 16)]))
        found = int(made.float().mean().round())
    except (RuntimeError, AttributeError, OSError, UnavailableError) as error:  # its binaries fail in their own ways
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, UnavailableError) else str(error)
    else:
        if abs(found - 128) <= 2:
            return backend
        reason = f"a grey test picture of 128 came out as {found}"
    raise UnavailableError(f"no JPEG decoding on {device} ({reason}); the CPU decodes")


class GpuDecoder:
    """Encoded images to uint8 tensors on one device, H×W×C, upright."""

    def __init__(
        self, device: torch.device | str = "cuda", *, channels: int = 3, backend: Backend | None = None
    ) -> None:
        import torch

        if channels not in (1, 3):
            raise InputError(f"channels is {channels!r}; allowed on the GPU: 1 (grey), 3 (RGB)")
        self.device = _device(device)
        self.channels = channels
        self._backend = backend or tried(NvJpeg, self.device, channels)
        self.counts: Counter[str] = Counter()
        """Images by path: "gpu", or the reason why the CPU had it."""
        on_gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]

    def decode(self, files: Sequence[bytes]) -> list[Tensor]:
        """All of them; the first that can't be decoded raises its DecodeError, with its place in the list."""
        made: list[Tensor] = []
        for index, one in enumerate(self.decode_each(files)):
            if isinstance(one, DecodeError):
                raise DecodeError(f"image {index} of {len(files)}: {one}", problem=one.problem) from one
            made.append(one)
        return made

    def decode_each(self, files: Sequence[bytes]) -> list[Tensor | DecodeError]:
        """All of them, or in an image's place why it can't be decoded."""
        import torch

        made: dict[int, Tensor | DecodeError] = {}
        headers: dict[int, Header] = {}
        for index, data in enumerate(files):
            try:
                headers[index] = probe(data)
            except DecodeError as error:
                made[index] = error
        reasons = {index: cpu_reason(header, as_view(files[index])) for index, header in headers.items()}
        fit = [index for index, reason in reasons.items() if reason is None]
        self.counts.update(reason for reason in reasons.values() if reason is not None)
        caller = None if self.stream is None else torch.cuda.current_stream(self.device)
        with self.own_stream():
            if fit:
                chosen = [files[index] for index in fit]
                sizes = [(headers[index].height, headers[index].width) for index in fit]
                turns = np.array([headers[index].orientation for index in fit])
                pixels = self.decode_packed(_joined(chosen), *_table(chosen, sizes), turns)
                if pixels is not None:
                    parts = torch.split(pixels, [height * width * self.channels for height, width in sizes])
                    views = (part.view(*size, self.channels) for part, size in zip(parts, sizes, strict=True))
                    made.update(zip(fit, views, strict=True))
            for index, header in headers.items():
                if index not in made:
                    made[index] = self._on_cpu(files[index], header)
            if caller is not None:
                for one in made.values():
                    if not isinstance(one, DecodeError):
                        one.record_stream(caller)  # freed while the caller's stream reads it, it must not be reused
        if caller is not None and self.stream is not None:
            caller.wait_stream(self.stream)
        return [made[index] for index in range(len(files))]

    def decode_packed(self, memory: Tensor, starts: Ints, lengths: Ints, sizes: Ints, turns: Ints) -> Tensor | None:
        """Files that are fit for the GPU, of N × 2 upright sizes, to pixels one behind the other; None: it refused.

        To be called within `own_stream`.
        """
        import torch

        as_stored = np.where((turns >= 5)[:, None], sizes[:, ::-1], sizes)  # as `stored`, for all at once
        try:
            pixels = self._backend.decode(memory, starts, lengths, as_stored)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # One bad file can refuse a whole batch; the CPU finds out which, and says what is wrong with it.
            self.counts[f"batch refused: {first_line(error)}"] += len(starts)
            return None
        self.counts["gpu"] += len(starts)
        ends = np.cumsum(sizes[:, 0] * sizes[:, 1] * self.channels)
        for k in np.flatnonzero(turns > 1):
            height, width = as_stored[k]
            part = pixels[int(ends[k] - height * width * self.channels) : int(ends[k])]
            part.copy_(turn(part.view(int(height), int(width), self.channels), int(turns[k])).reshape(-1))
        return pixels

    @contextlib.contextmanager
    def own_stream(self) -> Iterator[None]:
        """The block's work on the decoder's stream. No other is made to wait: the thread's own may be training's."""
        import torch

        if self.stream is None:
            yield
            return
        self.stream.synchronize()
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def _on_cpu(self, data: bytes, header: Header) -> Tensor | DecodeError:
        import torch

        try:
            pixels = decode_on_cpu(data, header=header, channels=self.channels)
        except DecodeError as error:
            return error
        return torch.from_numpy(pixels).to(self.device)


def turn(image: Tensor, orientation: int) -> Tensor:
    """H×W×C upright and contiguous, on whatever device it is."""
    if swaps_sides(orientation):
        image = image.transpose(0, 1)
    reverse = [axis for axis, flip in enumerate(flips(orientation)) if flip]
    return (image.flip(reverse) if reverse else image).contiguous()


def _joined(files: Sequence[bytes]) -> Tensor:
    import torch

    return torch.frombuffer(bytearray().join(files), dtype=torch.uint8)


def _table(files: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> tuple[Ints, Ints, Ints]:
    """Where files that were joined begin, how long they are, and their sizes."""
    lengths = np.array([len(data) for data in files], np.int64)
    return np.cumsum(lengths) - lengths, lengths, np.array(sizes, np.int64)


def _device(device: torch.device | str) -> torch.device:
    import torch

    found = torch.device(device)
    if found.type != "cuda" or ":" in str(found):
        return found
    if not torch.cuda.is_available():
        raise UnavailableError("no JPEG decoding on a GPU: torch finds none here; the CPU decodes")
    return torch.device("cuda", torch.cuda.current_device())
