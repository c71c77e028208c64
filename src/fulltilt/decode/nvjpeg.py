"""nvJPEG, NVIDIA's decoder, called directly: a batch is one call over arrays of addresses.

torchvision and nvImageCodec call the same library, but make a Python object for every image. For a batch of 128 that
holds the interpreter lock for milliseconds, in which the trainer can't launch kernels; this takes a tenth of one.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from fulltilt.errors import UnavailableError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_NAMES: Final = ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so.11", "libnvjpeg.so")
_HARDWARE, _DEFAULT = 3, 0
_LUMA, _INTERLEAVED = 2, 5
_STATUS: Final = {
    1: "not initialised", 2: "invalid parameter", 3: "bad JPEG", 4: "JPEG not supported", 5: "allocation failed",
    6: "execution failed", 7: "architecture mismatch", 8: "internal error", 9: "not supported", 10: "incomplete",
}  # fmt: skip

Ints = npt.NDArray[np.int64]


class NvJpeg:
    """One decoder of one device; not for several threads at once."""

    def __init__(self, device: torch.device, channels: int) -> None:
        import torch

        self._device, self._channels = device, channels
        self._library = _library()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._batch = 0
        with torch.cuda.device(device):
            # The engine where there is one; elsewhere CUDA kernels, which take more of the GPU's time.
            if self._library.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(self._handle)):
                self._check("nvjpegCreateEx", _DEFAULT, None, None, 0, ctypes.byref(self._handle))
            self._check("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(self, memory: Tensor, starts: Ints, lengths: Ints, sizes: Ints) -> Tensor:
        """Files in host memory, of N × 2 sizes as stored: their pixels, H×W×C each, one behind the other.

        On the current stream; from pinned memory files are copied without waiting. RuntimeError: none was decoded.
        """
        import torch

        count = len(starts)
        if not count:
            return torch.empty(0, dtype=torch.uint8, device=self._device)
        rows = sizes[:, 1] * self._channels
        ends = np.cumsum(sizes[:, 0] * rows)
        pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self._device)
        images = np.zeros((count, 8), np.uint64)  # nvjpegImage_t: four addresses, four pitches
        images[:, 0] = pixels.data_ptr() + ends - sizes[:, 0] * rows
        images[:, 4] = rows
        files = (memory.data_ptr() + starts).astype(np.uint64)
        sizes_of_files = lengths.astype(np.uint64)
        with torch.cuda.device(self._device):
            if count != self._batch:
                layout = _INTERLEAVED if self._channels == 3 else _LUMA
                self._check("nvjpegDecodeBatchedInitialize", self._handle, self._state, count, 1, layout)
                self._batch = count
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            tables = (ctypes.c_void_p(table.ctypes.data) for table in (files, sizes_of_files, images))
            self._check("nvjpegDecodeBatched", self._handle, self._state, *tables, stream)
        return pixels

    def _check(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            self._batch = 0
            raise RuntimeError(f"{name}: {_STATUS.get(status, f'status {status}')}")

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._library.nvjpegJpegStateDestroy(self._state)
        if getattr(self, "_handle", None):
            self._library.nvjpegDestroy(self._handle)


@functools.cache
def _library() -> ctypes.CDLL:
    for name in itertools.chain(_NAMES, _places()):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnavailableError(
        "nvJPEG is not here: it comes with the CUDA toolkit, with torchvision for CUDA, or by itself: "
        "pip install nvidia-nvjpeg"
    )


def _places() -> Iterator[str]:
    """Where Python packages and toolkits put it, outside of the loader's path."""
    for package, inside in (("nvidia", "*/lib"), ("torchvision", "../torchvision.libs")):
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            yield from sorted(glob.glob(os.path.join(folder, inside, "libnvjpeg*.so*")), reverse=True)
    for toolkit in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"))):
        yield from sorted(glob.glob(os.path.join(toolkit, "lib64", "libnvjpeg.so*")), reverse=True) if toolkit else ()
