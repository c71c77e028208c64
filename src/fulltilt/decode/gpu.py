"""JPEG on the GPU, in batches: nvJPEG through torchvision or nvImageCodec, whichever works here.

What the engines don't decode, or decode to something else than libjpeg (progressive, CMYK, plain RGB, other formats,
cut files), takes the CPU's path and is copied up. All pixels come out upright and in one layout.

A decoder has a stream of its own. torchvision allocates on the caller's stream but decodes on another, without waiting
for it: on a stream with queued work it could write into memory that a queued kernel still reads.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from fulltilt.decode.backends import Backend, Layout, NvImageCodecBackend, TorchvisionBackend
from fulltilt.decode.header import Header, as_view
from fulltilt.decode.jpeg import cpu_reason
from fulltilt.decode.orientation import flips, stored, swaps_sides
from fulltilt.decode.recognise import probe
from fulltilt.decode.still import decode as decode_on_cpu
from fulltilt.errors import DecodeError, InputError, UnavailableError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MakeBackend: TypeAlias = "Callable[[torch.device, int], Backend]"


def available(device: torch.device | str = "cuda") -> str | None:
    """Why JPEGs can't be decoded on `device`, or None where they can. Found out by decoding one; remembered."""
    return _reason(str(device))


@functools.lru_cache(maxsize=16)
def _reason(device: str) -> str | None:
    try:
        select(_device(device), 3)
    except UnavailableError as error:
        return str(error)
    return None


def select(device: torch.device, channels: int, makers: Sequence[MakeBackend] | None = None) -> Backend:
    """The first backend that decodes a small JPEG right; UnavailableError with every reason where none does."""
    grey = np.full((16, 16, 3), 128, np.uint8)
    trial: bytes = simplejpeg.encode_jpeg(grey, colorsubsampling="420")
    reasons = []
    for make in makers or (TorchvisionBackend, NvImageCodecBackend):
        name = getattr(make, "name", "the backend")
        try:
            backend = make(device, channels)
            (made,) = backend.decode([as_tensor(trial)], [(16, 16)])
            found = None if made is None else int(made.float().mean().round())
        except Exception as error:  # third-party binaries fail in their own ways; each is told
            reasons.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        if found is not None and abs(found - 128) <= 2:
            return backend
        reasons.append(f"{name}: a grey test picture of 128 came out as {found}")
    raise UnavailableError(
        f"no JPEG decoding on {device} ({'; '.join(reasons)}). Install a torchvision built for CUDA, or "
        "nvidia-nvimgcodec-cu13[nvjpeg]; the CPU decodes meanwhile"
    )


class GpuDecoder:
    """Lists of encoded images to lists of uint8 tensors on one device, upright, contiguous, all in `layout`."""

    def __init__(
        self, device: torch.device | str = "cuda", *, channels: int = 3, backend: Backend | None = None
    ) -> None:
        import torch

        if channels not in (1, 3):
            raise InputError(f"channels is {channels!r}; allowed on the GPU: 1 (grey), 3 (RGB)")
        self.device = _device(device)
        self.channels = channels
        self.backend = backend or select(self.device, channels)
        self.layout: Layout = self.backend.layout
        self.counts: Counter[str] = Counter()
        """Images by path: "gpu", or the reason why the CPU had it."""
        on_gpu = self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]

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
        made: list[Tensor | DecodeError | None] = [None] * len(files)
        headers: list[Header | None] = [None] * len(files)
        chosen = []
        for index, data in enumerate(files):
            try:
                headers[index] = header = probe(data)
            except DecodeError as error:
                made[index] = error
                continue
            reason = cpu_reason(header, as_view(data))
            if reason is None:
                chosen.append(index)
            else:
                self.counts[reason] += 1
        with self._own_stream() as caller:
            known = [found for i in chosen if (found := headers[i]) is not None]
            on_gpu = self.decode_known(
                [as_tensor(files[i]) for i in chosen],
                [(found.height, found.width) for found in known],
                [found.orientation for found in known],
            )
            for index, tensor in zip(chosen, on_gpu, strict=True):
                made[index] = tensor
            for index, left in enumerate(headers):
                if made[index] is None and left is not None:
                    made[index] = self._on_cpu(files[index], left)
            if caller is not None:
                for one in made:
                    if not isinstance(one, DecodeError | None):
                        one.record_stream(caller)  # freed while the caller's stream reads it, it must not be reused
        return [one for one in made if one is not None]

    def decode_known(
        self, files: list[Tensor], sizes: list[tuple[int, int]], orientations: list[int]
    ) -> list[Tensor | None]:
        """JPEGs that are known to be fit for the GPU, of these upright sizes, on the current stream.

        None in the place of one that was refused after all.
        """
        import torch

        if not files:
            return []
        as_stored = [stored(*size, orientation) for size, orientation in zip(sizes, orientations, strict=True)]
        try:
            tensors = self.backend.decode(files, as_stored)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # One bad file can refuse a whole batch; the CPU finds out which, and says what is wrong with it.
            self.counts[f"batch refused: {str(error).splitlines()[0]}"] += len(files)
            return [None] * len(files)
        refused = sum(tensor is None for tensor in tensors)
        self.counts["gpu"] += len(tensors) - refused
        self.counts["refused"] += refused
        return [
            None if tensor is None else turn(tensor, orientation, self.layout)
            for tensor, orientation in zip(tensors, orientations, strict=True)
        ]

    def _on_cpu(self, data: bytes, header: Header) -> Tensor | DecodeError:
        import torch

        try:
            pixels = decode_on_cpu(data, header=header, channels=self.channels)
        except DecodeError as error:
            return error
        if self.layout == "channels_first":
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return torch.from_numpy(pixels).to(self.device)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[torch.cuda.Stream | None]:
        """The block's work on the decoder's stream; afterwards the caller's waits for it."""
        import torch

        if self._stream is None:
            yield None
            return
        caller = torch.cuda.current_stream(self.device)
        self._stream.synchronize()  # so that nothing queued here still reads what is about to be allocated again
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield caller
        caller.wait_stream(self._stream)


def as_tensor(data: bytes) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def turn(image: Tensor, orientation: int, layout: Layout) -> Tensor:
    """Upright and contiguous, on whatever device it is."""
    rows, columns = (1, 2) if layout == "channels_first" else (0, 1)
    if swaps_sides(orientation):
        image = image.transpose(rows, columns)
    reverse = [axis for axis, flip in zip((rows, columns), flips(orientation), strict=True) if flip]
    return (image.flip(reverse) if reverse else image).contiguous()


def _device(device: torch.device | str) -> torch.device:
    import torch

    found = torch.device(device)
    if found.type != "cuda" or ":" in str(found):
        return found
    if not torch.cuda.is_available():
        raise UnavailableError("no JPEG decoding on a GPU: torch finds none here; the CPU decodes")
    return torch.device("cuda", torch.cuda.current_device())
