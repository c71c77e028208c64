"""The augmentation as one opaque operator, so that torch.compile keeps it whole and breaks no graph.

Eager code doesn't come through here: it calls the engine directly and saves the dispatcher's microseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.augment.batch import Batch, Ragged
from fulltilt.augment.engine import augment
from fulltilt.augment.layout import ROW, Ops
from fulltilt.augment.spec import Dials, Fill, Spec

# Operators take numbers and tensors only: these put a Spec and a Batch into lists and get them back.
_INTS = ("ops", "out_h", "out_w", "channels_last", "fill_mode", "mask_fill", "crop_padding", "normalize", "counts")
_FLOATS = ("fill", "erase_value", "eval_crop")


def compiled_augment(
    batch: Batch, spec: Spec, dials: Dials, index: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`engine.augment` through the operator."""
    ragged, ragged_masks = batch.ragged, batch.ragged_masks
    shape = [batch.count, batch.frames, batch.channels, batch.height, batch.width, int(batch.interleaved)]
    shape += [0 if ragged is None else ragged.smallest]
    images, labels, rows = torch.ops.fulltilt.augment(
        batch.data,
        batch.masks,
        None if ragged is None else ragged.offsets,
        None if ragged is None else ragged.sizes,
        None if ragged_masks is None else ragged_masks.offsets,
        dials.state,
        dials.full,
        dials.rest,
        dials.strength,
        dials.norm,
        index,
        shape,
        [int(getattr(spec, name)) for name in _INTS],
        [float(getattr(spec, name)) for name in _FLOATS],
        spec.dtype,
    )
    return images, labels if batch.masks is not None else None, rows


@torch.library.custom_op("fulltilt::augment", mutates_args={"state"})
def _augment(
    data: Tensor,
    masks: Tensor | None,
    offsets: Tensor | None,
    sizes: Tensor | None,
    mask_offsets: Tensor | None,
    state: Tensor,
    full: Tensor,
    rest: Tensor,
    strength: Tensor,
    norm: Tensor | None,
    index: Tensor | None,
    shape: list[int],
    ints: list[int],
    floats: list[float],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, spec = _unpack(data, masks, offsets, sizes, mask_offsets, shape, ints, floats, dtype)
    dials = Dials(state=state, full=full, rest=rest, strength=strength, norm=norm)
    images, labels, rows = augment(batch, spec, dials, index)
    return images, rows.new_empty(0) if labels is None else labels, rows


@_augment.register_fake
def _(  # type: ignore[no-untyped-def]
    data, masks, offsets, sizes, mask_offsets, state, full, rest, strength, norm, index, shape, ints, floats, dtype
):
    """The outputs' shapes."""
    count, frames, channels = shape[:3]
    spec = dict(zip(_INTS, ints, strict=True))
    size = (spec["out_h"], spec["out_w"])
    images = data.new_empty((count * frames, channels, *size), dtype=dtype)
    if spec["channels_last"]:
        images = images.to(memory_format=torch.channels_last)
    labels = full.new_empty(0) if masks is None else masks.new_empty((count * frames, *size))
    return images, labels, full.new_empty((count, ROW))


def _unpack(
    data: Tensor,
    masks: Tensor | None,
    offsets: Tensor | None,
    sizes: Tensor | None,
    mask_offsets: Tensor | None,
    shape: list[int],
    ints: list[int],
    floats: list[float],
    dtype: torch.dtype,
) -> tuple[Batch, Spec]:
    count, frames, channels, height, width, interleaved, smallest = shape
    ragged = labels = None
    if offsets is not None and sizes is not None:
        ragged = Ragged(
            data=data,
            offsets=offsets,
            sizes=sizes,
            channels=channels,
            interleaved=bool(interleaved),
            smallest=smallest,
        )
        if masks is not None and mask_offsets is not None:
            labels = Ragged(data=masks, offsets=mask_offsets, sizes=sizes, channels=1, interleaved=False)
    batch = Batch(
        data=data,
        count=count,
        frames=frames,
        channels=channels,
        height=height,
        width=width,
        ragged=ragged,
        masks=masks,
        ragged_masks=labels,
        interleaved=bool(interleaved),
    )
    i = dict(zip(_INTS, ints, strict=True))
    f = dict(zip(_FLOATS, floats, strict=True))
    spec = Spec(
        ops=Ops(i["ops"]),
        out_h=i["out_h"],
        out_w=i["out_w"],
        dtype=dtype,
        channels_last=bool(i["channels_last"]),
        fill_mode=Fill(i["fill_mode"]),
        fill=f["fill"],
        mask_fill=i["mask_fill"],
        erase_value=f["erase_value"],
        crop_padding=i["crop_padding"],
        eval_crop=f["eval_crop"],
        normalize=bool(i["normalize"]),
        counts=bool(i["counts"]),
    )
    return batch, spec
