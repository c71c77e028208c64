"""Segment mAP: how well actions are found, at thresholds of temporal overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fulltilt.errors import InputError
from fulltilt.recipes.video.segments import Segments, decode, tiou, true_segments


class SegmentMap(Metric):
    """Mean over thresholds and classes of the average precision of segments.

    Updated with a detector's outputs (B×T×(1 + classes + 2)) and labels (B×T) of whole videos. Whether a detection is
    right is settled in its own video, so what is kept is a row for each detection, and ranks have only to join theirs.
    Precision is taken as the highest at this recall or a greater one (as THUMOS and ActivityNet do). A class that never
    occurs does not count.
    """

    full_state_update = False
    higher_is_better = True

    rows: list[Tensor]
    """Of each detection: class, score, and at each threshold whether it is right. Flat, as none are."""
    actions: Tensor
    """How many there are of each class."""

    def __init__(self, classes: int = 4, thresholds: float | Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7)) -> None:
        super().__init__()
        self.thresholds = (thresholds,) if isinstance(thresholds, int | float) else tuple(thresholds)
        if not self.thresholds or not all(0 < threshold <= 1 for threshold in self.thresholds):
            raise InputError(f"thresholds are {thresholds}; expected numbers above 0, up to 1")
        self.classes = classes
        self.add_state("rows", default=[], dist_reduce_fx="cat")
        self.add_state("actions", default=torch.zeros(classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Note what was found in some videos."""
        if outputs.shape != (*labels.shape, self.classes + 3):
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape)} with labels of shape {tuple(labels.shape)}; "
                f"expected {(*labels.shape, self.classes + 3)}"
            )
        # On the CPU: choosing among segments is many small decisions, each of which a GPU would have to be asked for.
        for judged, known in zip(outputs.detach().cpu(), labels.cpu(), strict=True):
            self.note(decode(judged), true_segments(known))

    def note(self, found: Segments, known: Segments) -> None:
        """Note one video's detections and what there is to detect, both on the CPU."""
        right = matches(found, known, self.thresholds)
        rows = torch.cat([found.classes[:, None].float(), found.scores[:, None].float(), right.float()], 1)
        self.rows.append(rows.flatten().to(self.actions.device))
        self.actions += torch.bincount(known.classes, minlength=self.classes).to(self.actions.device)

    def compute(self) -> Tensor:
        """From 0 to 1."""
        rows: Any = self.rows
        if isinstance(rows, list):  # which ranks, where there are several, have joined
            rows = torch.cat([torch.zeros(0, device=self.actions.device), *rows])
        rows = rows.view(-1, 2 + len(self.thresholds))
        found = []
        for kind, actions in enumerate(self.actions.tolist()):
            own = rows[rows[:, 0] == kind]
            own = own[own[:, 1].argsort(descending=True, stable=True)]
            if actions:
                found += [average_precision(own[:, 2 + at], actions) for at in range(len(self.thresholds))]
        return torch.stack(found).mean() if found else torch.tensor(0.0)


def matches(found: Segments, known: Segments, thresholds: Sequence[float]) -> Tensor:
    """For each detection and threshold, whether it is right.

    The surest is asked first; it is right if, of the actions of its class that none has got yet, the one that it
    overlaps most reaches the threshold.
    """
    right = torch.zeros(len(found.scores), len(thresholds), dtype=torch.bool)
    if not len(found.scores) or not len(known.classes):
        return right
    overlap = tiou(found.bounds, known.bounds)
    overlap[found.classes[:, None] != known.classes[None]] = 0
    order = found.scores.argsort(descending=True, stable=True).tolist()
    for place, threshold in enumerate(thresholds):
        free = overlap.clone()
        for detection in order:
            best, action = free[detection].max(0)
            if best >= threshold:
                right[detection, place] = True
                free[:, action] = 0
    return right


def average_precision(right: Tensor, actions: int) -> Tensor:
    """Area under precision over recall, of detections in falling order of their scores."""
    hits = right.double().cumsum(0)
    precision = hits / torch.arange(1, len(right) + 1, device=right.device)
    highest = precision.flip(0).cummax(0).values.flip(0)
    return ((highest * right).sum() / actions).float()
