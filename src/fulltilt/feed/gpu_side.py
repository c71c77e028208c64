"""The GPU's share of decoding: what a full slot holds as files becomes pixels on the device, before it is given out.

A thread does it, because the libraries wait for the device. They release the interpreter lock meanwhile, and what the
thread itself does is per batch, so that the loop launches its kernels undisturbed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fulltilt.decode import decode as decode_on_cpu
from fulltilt.decode.gpu import GpuDecoder
from fulltilt.errors import DecodeError
from fulltilt.feed.reader import Filled
from fulltilt.feed.slot import Status

log = logging.getLogger("fulltilt.feed")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """Pixels of some of a slot's samples, on the device."""

    positions: npt.NDArray[np.int64]
    data: Tensor
    offsets: Tensor
    interleaved: bool
    ready: torch.cuda.Event | None
    """When they are there, and the slot's files have been read."""


class GpuSide:
    """Decodes on one device, slot after slot, in the order in which they are handed over."""

    def __init__(
        self, decoder: GpuDecoder, *, done: Callable[[Filled], None], broken: Callable[[BaseException], None]
    ) -> None:
        self._decoder, self._done, self._broken = decoder, done, broken
        self._stream = torch.cuda.Stream(decoder.device) if decoder.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._queue: queue.SimpleQueue[Filled | None] = queue.SimpleQueue()
        self.trouble: str | None = None
        """Why a batch could not be decoded on the device; its files went through the CPU, one after the other."""
        self._thread = threading.Thread(target=self._run, name="fulltilt-gpu-decode", daemon=True)
        self._thread.start()

    def submit(self, filled: Filled) -> None:
        """Decode the slot's files; `done` is called when they are under way to be pixels."""
        self._queue.put(filled)

    def close(self) -> None:
        """Finish the slot under way, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (filled := self._queue.get()) is not None:
                if not filled.dropped:
                    self._decode(filled)
                self._done(filled)
        except BaseException as error:
            self._broken(error)

    def _decode(self, filled: Filled) -> None:
        slot, n = filled.slot, len(filled.step.indices)
        positions = np.flatnonzero((slot.status[:n] == Status.DONE) & (slot.length[:n] > 0))
        memory = torch.from_numpy(slot.data)
        starts, lengths = slot.offset[positions].tolist(), slot.length[positions].tolist()
        files = [memory[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        sizes = [(height, width) for height, width in slot.size[positions].tolist()]
        with self._own_stream():
            made = self._tried(files, sizes, slot.turn[positions].tolist())
            for k in [k for k, image in enumerate(made) if image is None]:
                try:
                    made[k] = self._by_the_cpu(files[k])
                except DecodeError as error:
                    position = int(positions[k])
                    slot.status[position] = Status.FAILED
                    filled.failures[position] = str(error)
            images = [image.view(-1) for image in made if image is not None]
            positions = positions[[k for k, image in enumerate(made) if image is not None]]
            ends = np.cumsum([len(image) for image in images], dtype=np.int64)
            offsets = torch.from_numpy(np.concatenate([np.zeros(1, np.int64), ends])[:-1])
            # One buffer instead of many: one lifetime to look after, and one base for the kernel to count from.
            data = torch.cat(images) if images else torch.empty(0, dtype=torch.uint8, device=self._decoder.device)
            filled.decoded = Decoded(
                positions=positions,
                data=data,
                offsets=offsets.to(data.device),
                interleaved=self._decoder.layout == "channels_last",
                ready=None if self._stream is None else self._stream.record_event(),
            )

    def _tried(self, files: list[Tensor], sizes: list[tuple[int, int]], turns: list[int]) -> list[Tensor | None]:
        try:
            made = self._decoder.decode_known(files, sizes, turns)
        except torch.OutOfMemoryError:
            self.trouble = "there is no GPU memory left for decoding"
            made = [None] * len(files)
        else:
            if files and all(image is None for image in made):
                self.trouble = f"the GPU decoded none of {len(files)} files"
        return made

    def _by_the_cpu(self, file: Tensor) -> Tensor:
        pixels = torch.from_numpy(decode_on_cpu(file.numpy().tobytes(), channels=self._decoder.channels))
        if self._decoder.layout == "channels_first":
            pixels = pixels.permute(2, 0, 1)
        return pixels.contiguous().to(self._decoder.device)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        # Backends decode on streams of their own and don't wait for this one: nothing queued here may still read the
        # memory that they are about to be given.
        self._stream.synchronize()
        with torch.cuda.device(self._decoder.device), torch.cuda.stream(self._stream):
            yield
