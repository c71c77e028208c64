"""One call of the augmentation: draw the rows, pass over the pixels. Kernels on a GPU, torch on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.augment import reference
from fulltilt.augment.batch import Batch
from fulltilt.augment.draws import Frame, draw_rows
from fulltilt.augment.layout import REVISION, ROW, Ops
from fulltilt.augment.spec import Spec
from fulltilt.errors import UnavailableError

_MEAN_CHUNKS = 64
_GRID_LIMIT = 65535

_Result = tuple[Tensor, Tensor | None, Tensor]


def augment(
    batch: Batch,
    spec: Spec,
    *,
    state: Tensor,
    full: Tensor,
    rest: Tensor,
    strength: Tensor,
    norm: Tensor | None,
    index: Tensor | None,
) -> _Result:
    """Images frames × C × H × W, masks frames × H × W, and the rows that were drawn."""
    run = _on_cpu if batch.data.device.type == "cpu" else _on_gpu
    return run(batch, spec, state, full, rest, strength, norm, index)


def _on_cpu(
    batch: Batch,
    spec: Spec,
    state: Tensor,
    full: Tensor,
    rest: Tensor,
    strength: Tensor,
    norm: Tensor | None,
    index: Tensor | None,
) -> _Result:
    seed, epoch, first = state.tolist()
    if index is None:
        index = first + torch.arange(batch.count)
    rows = draw_rows(
        ops=spec.ops,
        values=strength * full + (1.0 - strength) * rest,
        seed=seed,
        epoch=epoch,
        index=index,
        frame=Frame(
            sizes=batch.sizes(),
            out_h=spec.out_h,
            out_w=spec.out_w,
            crop_padding=spec.crop_padding,
            eval_crop=spec.eval_crop,
        ),
        means=reference.gray_means(batch) if Ops.MEAN_PIVOT in spec.ops and batch.count else None,
    )
    images, masks = reference.warp(batch, rows, spec, norm)
    if spec.counts:
        state[2] += batch.count
    if masks is None and batch.masks is not None:
        masks = batch.masks.new_empty(0, spec.out_h, spec.out_w)
    return images, masks, rows


def _on_gpu(
    batch: Batch,
    spec: Spec,
    state: Tensor,
    full: Tensor,
    rest: Tensor,
    strength: Tensor,
    norm: Tensor | None,
    index: Tensor | None,
) -> _Result:
    """Launches only: nothing here waits for the device, and nothing is allocated but outputs and rows."""
    try:
        from fulltilt.augment.kernels.draw import draw
        from fulltilt.augment.kernels.warp import warp
    except ModuleNotFoundError as error:
        raise UnavailableError(f"augmentation on a GPU needs Triton ({error}); pip install triton") from error

    device = batch.data.device
    frames = batch.count * batch.frames
    images = torch.empty(
        (frames, batch.channels, spec.out_h, spec.out_w),
        dtype=spec.dtype,
        device=device,
        memory_format=torch.channels_last if spec.channels_last else torch.contiguous_format,
    )
    masks = None
    if batch.masks is not None:
        masks = torch.empty((frames, spec.out_h, spec.out_w), dtype=batch.masks.dtype, device=device)
    rows = torch.empty((batch.count, ROW), device=device)
    if frames == 0:
        return images, masks, rows

    ops = int(spec.ops)
    ragged = batch.ragged
    sizes = state if ragged is None else ragged.sizes
    sums = _gray_sums(batch, sizes) if Ops.MEAN_PIVOT in spec.ops else rows
    draw[(-(-batch.count // 32),)](
        rows, state, state if index is None else index, full, rest, strength, sizes, sums,
        batch.count, batch.height, batch.width, spec.out_h, spec.out_w, spec.crop_padding, spec.eval_crop, _MEAN_CHUNKS,
        OPS=ops, HAS_INDEX=index is not None, HAS_SIZES=ragged is not None, BLOCK=32, REVISION=REVISION, num_warps=1,
    )  # fmt: skip

    packed, unit = _packed(batch, spec)
    store = _store(images, spec)
    block_h, block_w, warps = _tile(store)
    stride_n, stride_c, stride_y, stride_x = batch.data.stride() if ragged is None else _ragged_strides(batch)
    out_n, out_c, out_y, out_x = images.stride()
    for first in range(0, frames, _GRID_LIMIT):
        grid = (-(-spec.out_w // block_w), -(-spec.out_h // block_h), min(frames - first, _GRID_LIMIT))
        warp[grid](
            images, batch.data, images if masks is None else _bytes(masks),
            images if masks is None else _bytes(batch.masks),
            rows, state, rows if norm is None else norm,
            state if ragged is None else ragged.offsets,
            state if batch.ragged_masks is None else batch.ragged_masks.offsets, sizes,
            batch.height, batch.width, stride_n, stride_c, stride_y, stride_x, spec.out_h, spec.out_w,
            out_n, out_c, out_y, out_x, batch.height * batch.width, 1, batch.frames, first, batch.count,
            batch.scale * unit, spec.fill, spec.mask_fill, spec.erase_value,
            OPS=ops, CHANNELS=batch.channels, PACKED=packed,
            RAGGED=0 if ragged is None else (1 if ragged.interleaved else 2),
            MASKS=masks is not None, FILL=int(spec.fill_mode), NORMALIZE=norm is not None, STORE=store,
            COUNTS=spec.counts and first == 0, BLOCK_H=block_h, BLOCK_W=block_w, REVISION=REVISION, num_warps=warps,
        )  # fmt: skip
    if Ops.BLUR in spec.ops:
        _blur(images, rows, batch, spec)
    return images, masks, rows


def _packed(batch: Batch, spec: Spec) -> tuple[bool, float]:
    """Whether the input can be read as words, and what the kernel's readings are then multiplied by."""
    from fulltilt.augment.kernels.taps import PACKED_UNIT

    least = 4 if Ops.SHRINK in spec.ops else 2
    packed = batch.data.dtype == torch.uint8 and batch.channels == 3
    if batch.ragged is not None:
        packed = packed and batch.ragged.interleaved and batch.ragged.smallest >= least
    else:
        packed = packed and batch.data.stride()[1:] == (1, batch.width * 3, 3) and batch.width >= least
    return packed, PACKED_UNIT if packed else 1.0


def _store(images: Tensor, spec: Spec) -> int:
    from fulltilt.augment.kernels.warp import ONE_PIXEL, STRIDED, TWO_PIXELS

    if not spec.channels_last or images.shape[1] != 3:
        return STRIDED
    if images.dtype == torch.float32:
        return ONE_PIXEL
    return TWO_PIXELS if images.element_size() == 2 and spec.out_w % 2 == 0 else STRIDED


def _tile(store: int) -> tuple[int, int, int]:
    """Height and width of a program's tile, and its warps. Fixed, so that no batch tunes anything."""
    return (8, 64, 4) if store == 2 else (8, 32, 4)


def _ragged_strides(batch: Batch) -> tuple[int, int, int, int]:
    # Lines and planes depend on each image's size, which the kernel reads.
    return (0, 1, 0, batch.channels) if batch.interleaved else (0, 0, 0, 1)


def _bytes(masks: Tensor | None) -> Tensor | None:
    return masks.view(torch.uint8) if masks is not None and masks.dtype == torch.bool else masks


def _gray_sums(batch: Batch, sizes: Tensor) -> Tensor:
    from fulltilt.augment.kernels.blur import gray_sums

    sums = torch.empty((batch.count, _MEAN_CHUNKS), device=batch.data.device)
    ragged = batch.ragged
    stride_n, stride_c, stride_y, stride_x = batch.data.stride() if ragged is None else _ragged_strides(batch)
    gray_sums[(batch.count, _MEAN_CHUNKS)](
        sums, batch.data, sizes if ragged is None else ragged.offsets, sizes, batch.height, batch.width,
        stride_n, stride_c, stride_y, stride_x, batch.frames, _MEAN_CHUNKS, batch.scale, CHANNELS=batch.channels,
        RAGGED=0 if ragged is None else (1 if ragged.interleaved else 2), BLOCK=1024, REVISION=REVISION,
    )  # fmt: skip
    return sums


def _blur(images: Tensor, rows: Tensor, batch: Batch, spec: Spec) -> None:
    """Along x into a second buffer, along y back; samples that are not blurred are left alone."""
    from fulltilt.augment.kernels.blur import blur

    between = torch.empty_like(images, dtype=torch.float32 if images.dtype == torch.float32 else torch.float16)
    frames, block_h, block_w = len(images), 8, 32
    for first in range(0, frames, _GRID_LIMIT):
        grid = (-(-spec.out_w // block_w), -(-spec.out_h // block_h), min(frames - first, _GRID_LIMIT))
        for dst, src, along_x in ((between, images, True), (images, between, False)):
            blur[grid](
                dst, src, rows, spec.out_h, spec.out_w, *images.stride(), batch.frames, first, spec.erase_value,
                CHANNELS=batch.channels, ALONG_X=along_x, ERASE=Ops.ERASE in spec.ops and not along_x,
                BLOCK_H=block_h, BLOCK_W=block_w, REVISION=REVISION, num_warps=4,
            )  # fmt: skip
