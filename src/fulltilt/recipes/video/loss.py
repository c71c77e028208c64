"""What the detector is trained for: each frame's class, and in an action, where that begins and ends."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fulltilt.recipes.video.segments import spans


def detection_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the classes, and 1 − tIoU of the segments that frames in an action propose.

    Both are means over a clip, then over clips: a batch in two halves has the mean of their losses, so that two
    processes train as one does. An action that the clip cuts off is what the clip has of it.

    Args:
        outputs: B×T×(1 + classes + 2), as `Detector` gives them.
        labels: B×T: 0, or a class from 1 on.
    """
    outputs = outputs.float()
    classes = functional.cross_entropy(outputs[..., :-2].transpose(1, 2), labels)
    starts, ends = spans(labels)
    middle = torch.arange(labels.shape[1], device=labels.device) + 0.5
    to_start, to_end = middle - starts, ends - middle
    shared = torch.minimum(outputs[..., -2], to_start) + torch.minimum(outputs[..., -1], to_end)
    either = torch.maximum(outputs[..., -2], to_start) + torch.maximum(outputs[..., -1], to_end)
    inside = (labels > 0).float()
    missed = ((1 - shared / either) * inside).sum(1) / inside.sum(1).clamp(min=1)
    return classes + missed.mean()
