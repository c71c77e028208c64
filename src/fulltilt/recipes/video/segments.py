"""From labels of frames to segments, and from a detector's judgement of frames to segments with scores.

A segment is [start, end) in frames, which need not be whole. Everything is on the CPU or GPU that its inputs are on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SCORE_AT_LEAST = 0.05
MOST_CANDIDATES = 400
"""Frames of a video that are asked for a segment: those most sure of an action."""


class Segments(NamedTuple):
    """Of one video, or of one clip."""

    bounds: Tensor
    """K×2: start and end, in frames."""
    classes: Tensor
    """K: from 0 on; no action is none of them."""
    scores: Tensor
    """K; 1 for what is known."""


def spans(labels: Tensor) -> tuple[Tensor, Tensor]:
    """For every frame of …×T labels, where the run of equal labels that it is in begins and ends, as frame numbers.

    The end is the frame after the run's last. Two actions of one class without a frame between them are one.
    """
    frames = labels.shape[-1]
    numbers = torch.arange(frames, device=labels.device).expand_as(labels)
    changes = torch.ones_like(labels, dtype=torch.bool)
    changes[..., 1:] = labels[..., 1:] != labels[..., :-1]
    starts = torch.where(changes, numbers, 0).cummax(-1).values
    last = torch.ones_like(changes)
    last[..., :-1] = changes[..., 1:]
    ends = torch.where(last, numbers + 1, frames).flip(-1).cummin(-1).values.flip(-1)
    return starts, ends


def true_segments(labels: Tensor) -> Segments:
    """The actions in one video's labels (T)."""
    starts, ends = spans(labels)
    first = (labels > 0) & (starts == torch.arange(len(labels), device=labels.device))
    bounds = torch.stack([starts[first], ends[first]], -1).float()
    return Segments(bounds, labels[first] - 1, torch.ones(len(bounds), device=labels.device))


def decode(outputs: Tensor, *, sigma: float = 0.2, keep: int = 100) -> Segments:
    """Segments of one video, the surest first, from T×(1 + classes + 2): every frame proposes, soft-NMS chooses."""
    scores = outputs[:, :-2].float().softmax(-1)[:, 1:]
    frames = torch.arange(len(outputs), device=outputs.device, dtype=torch.float32) + 0.5
    bounds = torch.stack([frames - outputs[:, -2].float(), frames + outputs[:, -1].float()], -1)
    bounds = bounds.clamp(0, len(outputs))
    best, flat = scores.flatten().topk(min(MOST_CANDIDATES, scores.numel()))
    flat, best = flat[best >= SCORE_AT_LEAST], best[best >= SCORE_AT_LEAST]
    frame, kind = flat // scores.shape[1], flat % scores.shape[1]
    return soft_nms(Segments(bounds[frame], kind, best), sigma=sigma, keep=keep)


def soft_nms(found: Segments, *, sigma: float, keep: int) -> Segments:
    """The surest stays; others of its class lose by how much they overlap it, exp(−tIoU² / sigma); and so on."""
    bounds, classes, scores = found.bounds, found.classes, found.scores.clone()
    alike = torch.exp(-(tiou(bounds, bounds) ** 2) / sigma)
    alike = torch.where(classes[:, None] == classes[None], alike, 1.0)
    chosen: list[int] = []
    final: list[float] = []
    while len(chosen) < min(keep, len(scores)):
        best = int(scores.argmax())
        score = float(scores[best])
        if score < 1e-3:
            break
        chosen.append(best)
        final.append(score)
        scores *= alike[best]
        scores[best] = -1.0
    picked = torch.tensor(chosen, dtype=torch.int64, device=bounds.device)
    return Segments(bounds[picked], classes[picked], torch.tensor(final, device=bounds.device))


def tiou(some: Tensor, others: Tensor) -> Tensor:
    """N×2 and M×2 → N×M: the length that two segments share, of the length that either covers."""
    start = torch.maximum(some[:, None, 0], others[None, :, 0])
    end = torch.minimum(some[:, None, 1], others[None, :, 1])
    shared = (end - start).clamp(min=0)
    either = (some[:, 1] - some[:, 0])[:, None] + (others[:, 1] - others[:, 0])[None] - shared
    return shared / either.clamp(min=1e-6)
