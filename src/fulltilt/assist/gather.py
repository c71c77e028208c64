"""Batches of outputs and targets that are gathered before they are counted: how many, and in one piece or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fulltilt.assist.tables import LEAST_SCORES

Pair = tuple[Any, Any]
"""Outputs and targets of a batch."""

_SHARED_BATCHES = 32
"""At most, of those that lie where a DataLoader's worker has put them: each holds an open file, and a process may have
a thousand."""
_UNKNOWN_BYTES = 8 << 20
"""Counted for what is no tensor."""


def size_of(part: Any) -> int:
    """In bytes."""
    return part.nbytes if isinstance(part, Tensor) else _UNKNOWN_BYTES


def most_like(latest: Sequence[Pair], *, batches: int, size: int) -> int:
    """How many batches like the latest may be gathered: so many at most, or so many bytes.

    They may be parts of something larger, which stays as long as they do: it counts, unless the batch before is a part
    of the same. Two at least, so that there is one before.
    """
    before, last = latest[0] if len(latest) > 1 else (None, None), latest[-1]
    held, most = 0, batches
    for one, other in zip(last, before, strict=True):
        if isinstance(one, Tensor):
            memory = one.untyped_storage()
            shared = isinstance(other, Tensor) and other.untyped_storage().data_ptr() == memory.data_ptr()
            held += 0 if shared else memory.nbytes()
            if one.device.type == "cpu" and one.is_shared():  # type: ignore[no-untyped-call]
                most = _SHARED_BATCHES
    return max(2, min(most, math.ceil(size / max(1, held))))


def aligned(outputs: Any, target: Any) -> Any:
    """Scores N×1×… for a target N×…, as a loss for masks takes them, too."""
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor) or outputs.dim() != target.dim() + 1:
        return outputs
    fits = outputs.shape[1] == 1 and outputs.shape[2:] == target.shape[1:]
    return outputs.squeeze(1) if fits else outputs


def in_one_piece(gathered: Sequence[Pair]) -> Pair | None:
    """All batches in one piece, where they are tensors that differ in their first dimension alone."""
    if not all(isinstance(part, Tensor) and part.dim() for pair in gathered for part in pair):
        return None
    kinds = {(o.shape, o.dtype, o.device, t.shape, t.dtype, t.device) for o, t in gathered}  # one, mostly, or two
    if any(outputs[0] != target[0] for outputs, _, _, target, _, _ in kinds):
        return None
    if len({(kind[0][1:], *kind[1:3], kind[3][1:], *kind[4:]) for kind in kinds}) > 1:
        return None
    if len(gathered) == 1:
        return gathered[0]
    with torch.no_grad():
        outputs, targets = (torch.cat(side) for side in zip(*gathered, strict=True))
    return outputs, targets


def guessed(outputs: Tensor, target: Tensor) -> Pair:
    """Class numbers for scores of large batches: an eighth or less to copy, and the CPU need not look for the highest.

    Both devices take the first of several that are highest.
    """
    scores = outputs.is_floating_point() and outputs.dim() == target.dim() + 1 and outputs.shape[1] <= 256
    if not scores or target.numel() < LEAST_SCORES or outputs.shape[2:] != target.shape[1:]:
        return outputs, target
    return outputs.detach().argmax(1).to(torch.uint8), target


def may_join(gathered: Sequence[Pair]) -> bool:
    """Whether batches that are in one piece count the same as one by one.

    Scores of the target's own shape don't: torchmetrics takes them for logits if any of an update's is outside [0, 1],
    so a batch may be read otherwise alone than in company.
    """
    outputs, target = gathered[0]
    return len(gathered) == 1 or not (outputs.is_floating_point() and outputs.dim() != target.dim() + 1)
