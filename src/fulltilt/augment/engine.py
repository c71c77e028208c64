"""One call of the augmentation: draw the rows, pass over the pixels. Kernels on a GPU, torch on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from fulltilt.augment import reference
from fulltilt.augment.batch import Batch
from fulltilt.augment.draws import Frame, draw_rows
from fulltilt.augment.gpu import prepared
from fulltilt.augment.layout import Ops
from fulltilt.augment.spec import Dials, Spec


def augment(batch: Batch, spec: Spec, dials: Dials, index: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Images frames × C × H × W, masks frames × H × W, and the rows that were drawn."""
    return (on_cpu if batch.data.device.type == "cpu" else on_gpu)(batch, spec, dials, index)


def on_gpu(batch: Batch, spec: Spec, dials: Dials, index: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Launches only: nothing waits for the device, nothing is allocated but the outputs and the rows."""
    return prepared(batch, spec, indexed=index is not None)(
        batch.data, batch.masks, dials, index, batch.ragged, batch.ragged_masks
    )


@torch.no_grad()
def on_cpu(batch: Batch, spec: Spec, dials: Dials, index: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same in torch, and as on a GPU no gradient goes back through it."""
    seed, epoch, first = dials.state.tolist()
    if index is None:
        index = first + torch.arange(batch.count)
    frame = Frame(
        sizes=batch.sizes(),
        out_h=spec.out_h,
        out_w=spec.out_w,
        crop_padding=spec.crop_padding,
        eval_crop=spec.eval_crop,
    )
    rows = draw_rows(
        ops=spec.ops,
        values=dials.strength * dials.full + (1.0 - dials.strength) * dials.rest,
        seed=seed,
        epoch=epoch,
        index=index,
        frame=frame,
        means=reference.gray_means(batch) if Ops.MEAN_PIVOT in spec.ops and batch.count else None,
    )
    images, masks = reference.warp(batch, rows, spec, dials.norm)
    if spec.counts:
        dials.state[2] += batch.count
    if masks is None and batch.masks is not None:
        masks = batch.masks.new_empty(0, spec.out_h, spec.out_w)
    return images, masks, rows
