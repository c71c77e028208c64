"""The GPU's share of decoding: what a full slot holds as files becomes pixels on the device, before it is given out.

A thread does it, because the library waits for the device. The interpreter lock is released meanwhile, and what the
thread does with it is per batch, not per image, so that the loop launches its kernels undisturbed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fulltilt.decode import decode as decode_on_cpu
from fulltilt.decode.gpu import GpuDecoder
from fulltilt.errors import DecodeError
from fulltilt.feed.images.reader import Filled
from fulltilt.feed.images.slot import Status


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoded:
    """Pixels of some of a slot's samples, on the device."""

    positions: npt.NDArray[np.int64]
    pixels: Tensor
    """Flat, H×W×C each."""
    offsets: npt.NDArray[np.int64]
    ready: torch.cuda.Event | None
    """When they are there, and the slot's files have been read."""


class GpuSide:
    """Decodes on one device, slot after slot, in the order in which they are handed over."""

    def __init__(
        self, decoder: GpuDecoder, *, done: Callable[[Filled], None], broken: Callable[[BaseException], None]
    ) -> None:
        self._decoder, self._done, self._broken = decoder, done, broken
        self._queue: queue.SimpleQueue[Filled | None] = queue.SimpleQueue()
        self._closing = False
        self.trouble: str | None = None
        """Why a batch could not be decoded on the device; its files went through the CPU, one after the other."""
        self.samples, self.seconds = 0, 0.0
        """Decoded so far, and the time that took."""
        self._thread = threading.Thread(target=self._run, name="fulltilt-gpu-decode", daemon=True)
        self._thread.start()

    def submit(self, filled: Filled) -> None:
        """Decode the slot's files; `done` is called when they are under way to be pixels."""
        self._queue.put(filled)

    def close(self) -> None:
        """Finish the slot that is being decoded, drop the others, and end; the slots' memory is read no more."""
        self._closing = True
        self._queue.put(None)
        self._thread.join()
        if self._decoder.stream is not None:
            self._decoder.stream.synchronize()

    def _run(self) -> None:
        try:
            while (filled := self._queue.get()) is not None and not self._closing:
                if not filled.dropped:
                    started = time.perf_counter()
                    self._decode(filled)
                    self.seconds += time.perf_counter() - started
                self._done(filled)
        except BaseException as error:
            self._broken(error)

    def _decode(self, filled: Filled) -> None:
        slot, n = filled.slot, len(filled.step.indices)
        positions = np.flatnonzero((slot.status[:n] == Status.DONE) & (slot.length[:n] > 0))
        self.samples += len(positions)
        starts, lengths = slot.offset[positions], slot.length[positions]
        sizes, turns = slot.size[positions].astype(np.int64), slot.turn[positions].astype(np.int64)
        stream = self._decoder.stream
        with self._decoder.own_stream():
            pixels = self._tried(torch.from_numpy(slot.data), starts, lengths, sizes, turns)
            if pixels is None:
                positions, pixels = self._by_the_cpu(filled, positions)
                sizes = slot.size[positions].astype(np.int64)
            filled.decoded = Decoded(
                positions=positions,
                pixels=pixels,
                offsets=_offsets(sizes, self._decoder.channels),
                ready=None if stream is None else stream.record_event(),
            )

    def _tried(self, memory: Tensor, *table: npt.NDArray[np.int64]) -> Tensor | None:
        try:
            pixels = self._decoder.decode_packed(memory, *table)
        except torch.OutOfMemoryError:
            self.trouble = "there is no GPU memory left for decoding"
            return None
        if pixels is None:
            self.trouble = f"the GPU decoded none of {len(table[0])} files"
        return pixels

    def _by_the_cpu(self, filled: Filled, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Tensor]:
        """What the GPU refused, here and now; files that are at fault are found out."""
        slot, made = filled.slot, {}
        for position in positions.tolist():
            start = int(slot.offset[position])
            file = slot.data[start : start + int(slot.length[position])].tobytes()
            try:
                made[position] = decode_on_cpu(file, channels=self._decoder.channels).reshape(-1)
            except DecodeError as error:
                slot.status[position] = Status.FAILED
                filled.failures[position] = str(error)
        flat = np.concatenate([np.empty(0, np.uint8), *made.values()])
        return np.array(list(made), np.int64), torch.from_numpy(flat).to(self._decoder.device)


def _offsets(sizes: npt.NDArray[np.int64], channels: int) -> npt.NDArray[np.int64]:
    """Where images that lie one behind the other begin."""
    lengths: npt.NDArray[np.int64] = sizes[:, 0] * sizes[:, 1] * channels
    return np.cumsum(lengths) - lengths
