"""Launching the kernels, in as few microseconds of Python as can be.

A call's shape decides everything but the tensors: which kernels, with which constants, on which grid. `prepared` works
that out once per shape, and the `Pass` it returns allocates the outputs and launches. The first launch goes through
Triton's just-in-time path and compiles; later ones call the compiled kernel (about 60 µs less for each).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fulltilt.augment.batch import Batch, Ragged
from fulltilt.augment.layout import REVISION, ROW, Ops
from fulltilt.augment.spec import Dials, Spec
from fulltilt.errors import UnavailableError

_MEAN_CHUNKS = 64
_GRID_LIMIT = 65535
_HEAVY = Ops.NOISE | Ops.HUE | Ops.GAMMA
"""With these a thread's registers are full: two pixels a thread would spill."""


class _Shape(NamedTuple):
    """What a call's tensors have in common with those of the next call."""

    device: torch.device
    dtype: torch.dtype
    strides: tuple[int, ...]
    samples: int
    frames: int
    channels: int
    height: int
    width: int
    ragged: int
    """0: dense; 1: interleaved; 2: planar."""
    wide: bool
    """Every image is at least four pixels wide."""
    mask_dtype: torch.dtype | None
    indexed: bool


def prepared(batch: Batch, spec: Spec, *, indexed: bool) -> Pass:
    """The pass for calls of this shape."""
    ragged = batch.ragged
    return _prepare(
        _Shape(
            device=batch.data.device,
            dtype=batch.data.dtype,
            strides=batch.data.stride(),
            samples=batch.count,
            frames=batch.frames,
            channels=batch.channels,
            height=batch.height,
            width=batch.width,
            ragged=0 if ragged is None else (1 if ragged.interleaved else 2),
            wide=(batch.width if ragged is None else ragged.smallest) >= 4,
            mask_dtype=None if batch.masks is None else batch.masks.dtype,
            indexed=indexed,
        ),
        spec,
    )


@functools.lru_cache(maxsize=512)
def _prepare(shape: _Shape, spec: Spec) -> Pass:
    return Pass(shape, spec)


class _Launch:
    """One kernel with its grid, its numbers and its constants; called with its tensors."""

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...], warps: int, **constants: Any):
        self._kernel, self._grid, self._warps = kernel, grid, warps
        self._numbers, self._constants = numbers, constants
        self._rest = (*numbers, *constants.values())
        self._compiled: Callable[..., None] | None = None

    def __call__(self, stream: int | None, *tensors: Tensor) -> None:
        if self._compiled is not None:
            self._compiled(*tensors, *self._rest, stream=stream)
            return
        kernel = self._kernel[self._grid](*tensors, *self._numbers, **self._constants, num_warps=self._warps)
        if kernel is not None:  # the interpreter compiles nothing
            self._compiled = kernel[self._grid]


class Pass:
    """Draws, gray means where contrast needs them, the pass over the pixels, blur where it is asked for."""

    def __init__(self, shape: _Shape, spec: Spec) -> None:
        try:
            from fulltilt.augment.kernels.draw import draw
        except ModuleNotFoundError as error:
            raise UnavailableError(f"augmentation on a GPU needs Triton ({error}); pip install triton") from error

        self._shape, self._spec = shape, spec
        self._frames = shape.samples * shape.frames
        self._images = (self._frames, shape.channels, spec.out_h, spec.out_w)
        self._masks = (self._frames, spec.out_h, spec.out_w)
        self._rows = (shape.samples, ROW)
        self._format = torch.channels_last if spec.channels_last else torch.contiguous_format
        sides = (shape.height, shape.width, spec.out_h, spec.out_w)
        self._draw = _Launch(
            draw,
            (-(-shape.samples // 32), 1, 1),
            (shape.samples, *sides, spec.crop_padding, spec.eval_crop, _MEAN_CHUNKS),
            1,
            OPS=int(spec.ops),
            HAS_INDEX=shape.indexed,
            HAS_SIZES=shape.ragged != 0,
            BLOCK=32,
            REVISION=REVISION,
        )
        out_strides = _strides(self._images, spec.channels_last)
        self._sums = self._gray_sums() if Ops.MEAN_PIVOT in spec.ops else None
        self._warps = [self._warp(first, out_strides) for first in range(0, self._frames, _GRID_LIMIT)]
        self._blurs = [
            (self._blur(first, out_strides, along_x=True), self._blur(first, out_strides, along_x=False))
            for first in range(0, self._frames, _GRID_LIMIT)
            if Ops.BLUR in spec.ops
        ]

    def __call__(
        self,
        data: Tensor,
        masks: Tensor | None,
        dials: Dials,
        index: Tensor | None,
        ragged: Ragged | None = None,
        ragged_masks: Ragged | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        shape, spec = self._shape, self._spec
        device, stream = shape.device, None
        if device.type == "cuda":
            if device.index != torch.cuda.current_device():
                with torch.cuda.device(device):
                    return self(data, masks, dials, index, ragged, ragged_masks)
            stream = torch.cuda.current_stream(device).cuda_stream
        images = torch.empty(self._images, dtype=spec.dtype, device=device, memory_format=self._format)
        rows = torch.empty(self._rows, device=device)
        labels = None
        source = target = images  # stand-ins where there are no masks: never read, never written
        if masks is not None:
            labels = target = torch.empty(self._masks, dtype=masks.dtype, device=device)
            source = masks if masks.is_contiguous() else masks.contiguous()
            if masks.dtype == torch.bool:
                source, target = source.view(torch.uint8), target.view(torch.uint8)
        if self._frames == 0:
            return images, labels, rows

        state = dials.state
        offsets = sizes = mask_offsets = state
        if ragged is not None:
            offsets, sizes = ragged.offsets, ragged.sizes
            mask_offsets = offsets if ragged_masks is None else ragged_masks.offsets
        sums = rows
        if self._sums is not None:
            sums = torch.empty((shape.samples, _MEAN_CHUNKS), device=device)
            self._sums(stream, sums, data, offsets, sizes)
        number = state if index is None else index
        self._draw(stream, rows, state, number, dials.full, dials.rest, dials.strength, sizes, sums)
        norm = rows if dials.norm is None else dials.norm
        for warp in self._warps:
            warp(stream, images, data, target, source, rows, state, norm, offsets, mask_offsets, sizes)
        if self._blurs:
            between = torch.empty_like(images, dtype=_between(spec.dtype))
            for along_x, along_y in self._blurs:
                along_x(stream, between, images, rows)
                along_y(stream, images, between, rows)
        return images, labels, rows

    def _warp(self, first: int, out_strides: tuple[int, ...]) -> _Launch:
        from fulltilt.augment.kernels.taps import PACKED_UNIT
        from fulltilt.augment.kernels.warp import STRIDED, TWO_PIXELS, warp

        shape, spec = self._shape, self._spec
        packed = shape.dtype == torch.uint8 and shape.channels == 3 and shape.wide
        packed = packed and (shape.ragged == 1 or shape.strides[1:] == (1, shape.width * 3, 3))
        pairs = spec.channels_last and shape.channels == 3 and spec.dtype.itemsize == 2 and spec.out_w % 2 == 0
        store = TWO_PIXELS if pairs and not spec.ops & _HEAVY else STRIDED
        block_h, block_w = 8, 32
        scale = 1.0 / 255.0 if shape.dtype == torch.uint8 else 1.0
        return _Launch(
            warp,
            self._grid(first, block_h, block_w),
            (
                shape.height, shape.width, *self._strides(), spec.out_h, spec.out_w, *out_strides,
                shape.height * shape.width, 1, shape.frames, first, shape.samples,
                scale * PACKED_UNIT if packed else scale, spec.fill, spec.mask_fill, spec.erase_value,
            ),
            2 if store == TWO_PIXELS else 4,
            OPS=int(spec.ops),
            CHANNELS=shape.channels,
            PACKED=packed,
            RAGGED=shape.ragged,
            MASKS=shape.mask_dtype is not None,
            FILL=int(spec.fill_mode),
            NORMALIZE=spec.normalize,
            STORE=store,
            COUNTS=spec.counts and first == 0,
            BLOCK_H=block_h,
            BLOCK_W=block_w,
            REVISION=REVISION,
        )  # fmt: skip

    def _gray_sums(self) -> _Launch:
        from fulltilt.augment.kernels.blur import gray_sums

        shape = self._shape
        scale = 1.0 / 255.0 if shape.dtype == torch.uint8 else 1.0
        return _Launch(
            gray_sums,
            (shape.samples, _MEAN_CHUNKS, 1),
            (shape.height, shape.width, *self._strides(), shape.frames, _MEAN_CHUNKS, scale),
            4,
            CHANNELS=shape.channels,
            RAGGED=shape.ragged,
            BLOCK=1024,
            REVISION=REVISION,
        )

    def _blur(self, first: int, out_strides: tuple[int, ...], *, along_x: bool) -> _Launch:
        """Along x into a second buffer, along y back; samples that are not blurred are left alone."""
        from fulltilt.augment.kernels.blur import blur

        spec, block_h, block_w = self._spec, 8, 32
        return _Launch(
            blur,
            self._grid(first, block_h, block_w),
            (spec.out_h, spec.out_w, *out_strides, self._shape.frames, first, spec.erase_value),
            4,
            CHANNELS=self._shape.channels,
            ALONG_X=along_x,
            ERASE=Ops.ERASE in spec.ops and not along_x,
            BLOCK_H=block_h,
            BLOCK_W=block_w,
            REVISION=REVISION,
        )

    def _grid(self, first: int, block_h: int, block_w: int) -> tuple[int, int, int]:
        frames = min(self._frames - first, _GRID_LIMIT)
        return -(-self._spec.out_w // block_w), -(-self._spec.out_h // block_h), frames

    def _strides(self) -> tuple[int, ...]:
        if self._shape.ragged == 0:
            return self._shape.strides
        # Lines and planes depend on each image's size, which the kernel reads.
        return (0, 1, 0, self._shape.channels) if self._shape.ragged == 1 else (0, 0, 0, 1)


def _strides(size: tuple[int, int, int, int], channels_last: bool) -> tuple[int, int, int, int]:
    _, c, h, w = size
    return (c * h * w, 1, c * w, c) if channels_last else (c * h * w, h * w, w, 1)


def _between(dtype: torch.dtype) -> torch.dtype:
    """What holds a half-blurred image: half precision has three bits more than bfloat16, and range enough."""
    return torch.float32 if dtype == torch.float32 else torch.float16
