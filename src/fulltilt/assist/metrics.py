"""`compute_metrics`: figures of one batch, from its outputs and targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fulltilt.errors import InputError

log = logging.getLogger("fulltilt.assist")

Kind = Literal["classes", "binary", "regression"]
_TELLING = 64
"""So many logits don't all lie from 0 to 1 by chance."""


def compute_metrics(
    outputs: Tensor,
    targets: Tensor,
    *,
    kind: Kind | Literal["auto"] = "auto",
    metrics: Mapping[str, Callable[[Tensor, Tensor], Any]] | None = None,
) -> dict[str, float]:
    """Figures of a batch, computed from its counts in double precision.

    Args:
        outputs: as a model gives them: scores (N, classes, …) for class numbers of shape (N, …); for masks logits, not
            probabilities, and for regression numbers, both of the targets' shape or (N, 1, …) for targets (N, …).
        kind: "classes": accuracy, and mean f1, iou and dice over the classes that occur; "binary": accuracy, precision,
            recall, f1, iou, dice; "regression": mae, rmse, r2. "auto" goes by shapes and by whether every target is
            0 or 1.
        metrics: more figures, as functions of (outputs, targets) without state: those of torchmetrics.functional, say.
    """
    outputs, targets = torch.as_tensor(outputs), torch.as_tensor(targets)
    if kind != "auto" and kind not in get_args(Kind):
        raise InputError(f"kind is {kind!r}; it can be 'auto', {', '.join(map(repr, get_args(Kind)))}")
    if outputs.dim() == targets.dim() + 1 and outputs.shape[1:2] == (1,):
        outputs = outputs.squeeze(1)  # a single channel is no class to choose from
    guessed = kind_of(outputs, targets)
    found = guessed if kind == "auto" else kind
    if (found == "classes") != (guessed == "classes"):
        raise InputError(
            f"kind is {kind!r}, but outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)} are of {'' if guessed == 'classes' else 'no '}classes; leave it to 'auto'"
        )
    figures = _FIGURES[found](outputs, targets)
    for name, function in (metrics or {}).items():
        figures[name] = float(function(outputs, targets))
    return figures


def kind_of(outputs: Tensor, targets: Tensor) -> Kind:
    """What these outputs and targets are of."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        return "classes"
    if outputs.shape != targets.shape:
        raise InputError(
            f"outputs of shape {tuple(outputs.shape)} don't go with targets of shape {tuple(targets.shape)}; "
            "the shapes are equal, or the outputs have one more dimension, the classes, as their second"
        )
    return "binary" if bool(((targets == 0) | (targets == 1)).all()) else "regression"


def _classes(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    classes = outputs.shape[1]
    known = (targets >= 0) & (targets < classes)  # others are marked to be ignored, with 255 or -100
    predicted, target = outputs.argmax(1)[known], targets[known].long()
    if not target.numel():
        raise InputError(f"no target is a class from 0 to {classes - 1}")
    confusion = torch.bincount(target * classes + predicted, minlength=classes**2).view(classes, classes).double()
    hits, support, guesses = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    occur = support + guesses > 0
    f1 = 2 * hits[occur] / (support + guesses)[occur]
    iou = hits[occur] / (support + guesses - hits)[occur]
    return {
        "accuracy": float(hits.sum() / confusion.sum()),
        "f1": float(f1.mean()),
        "iou": float(iou.mean()),
        "dice": float(f1.mean()),  # over counts the two are the same number
    }


def _binary(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    guess = outputs if outputs.dtype == torch.bool else outputs > 0  # logits: a probability of more than a half
    if outputs.is_floating_point() and outputs.numel() >= _TELLING:
        low, high = outputs.aminmax()
        if float(low) >= 0 and float(high) <= 1 and low < high:
            _tell_of_probabilities()
    target = targets.bool()
    true_positive = float((guess & target).sum())
    guessed, positive = float(guess.sum()), float(target.sum())
    right = float((guess == target).sum())
    return {
        "accuracy": _share(right, target.numel()),
        "precision": _share(true_positive, guessed),
        "recall": _share(true_positive, positive),
        "f1": _share(2 * true_positive, guessed + positive),
        "iou": _share(true_positive, guessed + positive - true_positive),
        "dice": _share(2 * true_positive, guessed + positive),
    }


@cache
def _tell_of_probabilities() -> None:
    """Once."""
    log.warning(
        "compute_metrics: all outputs lie from 0 to 1, and as logits all that are above 0 count as positive; if they "
        "are probabilities, pass what the model gives before its sigmoid"
    )


def _share(part: float, whole: float) -> float:
    """Nothing to find and nothing found is nothing to be ashamed of: empty masks that match count as 1."""
    return part / whole if whole else 1.0


def _regression(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    target = targets.double()
    error = outputs.double() - target
    spread = (target - target.mean()).square().sum()
    return {
        "mae": float(error.abs().mean()),
        "rmse": float(error.square().mean().sqrt()),
        "r2": float(1 - error.square().sum() / spread) if spread > 0 else float("nan"),
    }


_FIGURES: dict[Kind, Callable[[Tensor, Tensor], dict[str, float]]] = {
    "classes": _classes,
    "binary": _binary,
    "regression": _regression,
}
