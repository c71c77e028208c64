"""Pictures of the GPU's engines, copied together: a decoder gives each in the same memory.

One call of the driver for each. By way of DLPack and torch it would be three operations, each of which lets go of the
interpreter lock twice: decoders in a dozen threads then mostly wait for each other.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fulltilt.decode.video.nvdec import context_of
from fulltilt.errors import UnavailableError

Copy = Callable[[int, int, int, int], int]
"""To an address, from an address, so many bytes, on a stream; 0 or CUDA's error."""


class Planes:
    """Room for `count` pictures in 4:2:0: rows of luma, below them those of both colours (NV12)."""

    def __init__(self, count: int, height: int, width: int, *, device: torch.device, stream: int) -> None:
        """
        Args:
            stream: the decoder's own, which has to be torch's current one here.
        """
        self._height, self._width, self._stream = height, width, stream
        self._shape = (height * 3 // 2, width)
        self._bytes = height * 3 // 2 * width
        self._all = torch.empty((count, *self._shape), dtype=torch.uint8, device=device)
        self._first = self._all.data_ptr()
        self._copy = copier(device)
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count == len(self._all)

    def put(self, frame: Any) -> None:
        """A picture behind the others, before the decoder is asked for the next."""
        if self._copy is not None and self._is_whole(frame):
            to = self._first + self.count * self._bytes
            failed = self._copy(to, frame.GetPtrToPlane(0), self._bytes, self._stream)
            if failed:
                raise UnavailableError(f"a picture of NVDEC could not be copied (CUDA error {failed})")
        else:
            self._all[self.count].copy_(self._described(frame))
        self.count += 1

    def _is_whole(self, frame: Any) -> bool:
        """Its colours follow its brightness, without gaps."""
        luma_bytes = self._height * self._width
        return bool(frame.shape == self._shape and frame.GetPtrToPlane(1) - frame.GetPtrToPlane(0) == luma_bytes)

    def _described(self, frame: Any) -> Tensor:
        """By DLPack, or plane by plane."""
        # Not left to `from_dlpack`: it asks for a version first, and each refusal takes longer than all the rest.
        plane = torch.utils.dlpack.from_dlpack(frame.__dlpack__(stream=self._stream))
        if plane.dim() == 3 and plane.shape[-1] == 1:
            plane = plane[..., 0]
        if plane.shape[0] == self._height:
            luma, chroma = (torch.as_tensor(part, device=plane.device) for part in frame.cuda())
            plane = torch.cat([luma.reshape(self._height, -1), chroma.reshape(self._height // 2, -1)])
        if plane.shape != self._shape:
            raise UnavailableError(f"a picture came from NVDEC as {'×'.join(map(str, plane.shape))}")
        return plane

    def take(self) -> tuple[Tensor, Tensor]:
        """N×H×W and N×H/2×W/2×2, until the next is put; there is room again."""
        given, self.count = self._all[: self.count], 0
        chroma = given[:, self._height :].reshape(len(given), self._height // 2, self._width // 2, 2)
        return given[:, : self._height], chroma


def copier(device: torch.device) -> Copy | None:
    """The driver's copy from device memory to device memory, for this thread; None where there is no GPU."""
    if device.type != "cuda":
        return None
    number = device.index or 0
    # A thread that has only taken memory which torch had already is not in the context yet.
    failed = _driver().cuCtxSetCurrent(context_of(number))
    if failed:
        raise UnavailableError(f"this thread does not get into the context of GPU {number} (CUDA error {failed})")
    copy: Copy = _driver().cuMemcpyDtoDAsync_v2
    return copy


@functools.cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuCtxSetCurrent.argtypes = (ctypes.c_void_p,)
    driver.cuMemcpyDtoDAsync_v2.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
    return driver
