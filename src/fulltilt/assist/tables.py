"""Metrics of masks, counted from a table instead of from every pixel by each.

bf16 and fp16 have 65,536 values. How often each occurs, with either target, says all that accuracy, F1, IoU, Dice or a
binned AUROC ever count: 8 million pixels are gone through once for all of them, and thresholds are compared with a few
thousand values. The counts are whole numbers, so they are those of the metric's own update, to the last one; both are
compared at first, and a metric keeps its own update where they should differ. For several classes the table is that of
guesses and targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryConfusionMatrix,
    BinaryPrecisionRecallCurve,
    BinaryStatScores,
    MulticlassConfusionMatrix,
    MulticlassStatScores,
)

LEAST_SCORES = 1 << 16
"""Fewer are counted as fast one by one."""
_TRIED = 1 << 17
"""Scores by which it is seen whether a table counts the same."""
_VALUES = 1 << 16
_MOST_CLASSES = 1024
"""A table of more would be larger than what it saves."""
_AT_ONCE = 50_000
"""torchmetrics compares more scores than that with one threshold at a time, in the scores' own precision."""


class Table(NamedTuple):
    """The scores that occur, and how often with each target."""

    scores: Tensor
    negative: Tensor
    positive: Tensor


def table(outputs: Any, target: Any) -> Table | None:
    """The table of a batch; None where there is none to make: other types, other targets than 0 and 1, not a number."""
    if not (isinstance(outputs, Tensor) and isinstance(target, Tensor)) or outputs.shape != target.shape:
        return None
    half = outputs.dtype in (torch.bfloat16, torch.float16)
    if not half or target.is_floating_point() or outputs.numel() < LEAST_SCORES or outputs.device.type != "cpu":
        return None
    low, high = target.aminmax() if target.dtype != torch.bool else (torch.tensor(0), torch.tensor(1))
    if int(low) < 0 or int(high) > 1:
        return None
    which = outputs.contiguous().view(torch.int16).to(torch.int32).flatten() & (_VALUES - 1)
    which += target.contiguous().flatten().to(torch.int32) * _VALUES
    counts = torch.bincount(which, minlength=2 * _VALUES).view(2, _VALUES)
    occur = counts.sum(0).nonzero().flatten()
    scores = _all_values(outputs.dtype)[occur]
    if bool(scores.isnan().any()):
        return None
    return Table(scores, counts[0, occur], counts[1, occur])


class Confusion(NamedTuple):
    """How often each class was guessed for each target."""

    counts: Tensor
    """[target, guess]"""


def confusion(guesses: Any, target: Any, classes: int) -> Confusion | None:
    """The same for class numbers; None where there are others than 0 to `classes` - 1, or scores."""
    if not (isinstance(guesses, Tensor) and isinstance(target, Tensor)) or guesses.shape != target.shape:
        return None
    if guesses.is_floating_point() or target.is_floating_point() or guesses.numel() < LEAST_SCORES:
        return None
    if torch.bool in (guesses.dtype, target.dtype) or classes > _MOST_CLASSES:
        return None
    for part in (guesses, target):
        low, high = part.aminmax()
        if part.device.type != "cpu" or int(low) < 0 or int(high) >= classes:
            return None
    which = target.flatten().to(torch.int32) * classes + guesses.flatten().to(torch.int32)
    return Confusion(torch.bincount(which, minlength=classes**2).view(classes, classes))


def takes_labels(metric: Metric) -> bool:
    """Whether the class with the highest score is all that it looks at."""
    return isinstance(metric, _BY_CLASS) and getattr(metric, "top_k", 1) == 1 and _kind(metric) is not None


def _all_values(dtype: torch.dtype) -> Tensor:
    return torch.arange(_VALUES, dtype=torch.int32).to(torch.int16).view(dtype)


Count = Callable[[Any, Any], None]
"""Adds a table's counts to a metric's states."""


def counter(metric: Metric) -> Count | None:
    """How a metric counts from a table; None where it can't, or would rather not be meddled with."""
    kind = _kind(metric)
    return _KINDS[kind] if kind is not None and _is_fit(metric) else None


def _kind(metric: Metric) -> type[Metric] | None:
    # Somebody's own update stays his.
    return next((k for k in _KINDS if isinstance(metric, k) and type(metric).update is k.update), None)


def _is_fit(metric: Any) -> bool:
    classes = metric.num_classes if isinstance(metric, _BY_CLASS) else 2
    ignored = getattr(metric, "ignore_index", None)
    if (ignored is not None and 0 <= ignored < classes) or getattr(metric, "top_k", 1) != 1:
        return False
    thresholds = getattr(metric, "thresholds", None)
    if isinstance(metric, BinaryPrecisionRecallCurve):
        own = getattr(metric, "normalization", "sigmoid") == "sigmoid"
        return own and thresholds is not None and bool((thresholds.diff() >= 0).all())
    return getattr(metric, "multidim_average", "global") == "global"


def _probabilities(scores: Tensor) -> Tensor:
    """As torchmetrics does: scores of which any is outside [0, 1] are logits."""
    inside = bool(((scores >= 0) & (scores <= 1)).all())
    return scores if inside else scores.sigmoid()


def _labels(metric: Any, table: Table) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tn, fp, fn, tp."""
    guess = (_probabilities(table.scores) > metric.threshold).long()
    found = (guess * table.negative).sum(), (guess * table.positive).sum()
    return table.negative.sum() - found[0], found[0], table.positive.sum() - found[1], found[1]


def _stat_scores(metric: Any, table: Table) -> None:
    tn, fp, fn, tp = _labels(metric, table)
    metric._update_state(tp, fp, tn, fn)


def _confusion(metric: Any, table: Table) -> None:
    metric.confmat += torch.stack(_labels(metric, table)).view(2, 2)


def _curve(metric: Any, table: Table) -> None:
    scores, thresholds = _probabilities(table.scores), metric.thresholds
    total = int(table.negative.sum() + table.positive.sum())
    if total > _AT_ONCE:
        thresholds = thresholds.to(scores.dtype)
    reached = torch.bucketize(scores.float(), thresholds.float(), right=True)  # so many thresholds
    size = len(thresholds)
    sums = torch.zeros(2, size + 1, dtype=torch.int64)
    sums[0].index_add_(0, reached, table.negative)
    sums[1].index_add_(0, reached, table.positive)
    above = sums.flip(1).cumsum(1).flip(1)[:, 1:]  # (target, threshold): scores at or above it
    below = sums.sum(1, keepdim=True) - above
    metric.confmat += torch.stack((below, above), dim=-1).transpose(0, 1)


def _class_stat_scores(metric: Any, table: Confusion) -> None:
    counts = table.counts
    right, total = counts.diag(), counts.sum()
    if metric.average == "micro":
        hits = right.sum()
        metric._update_state(hits, total - hits, len(counts) * total - 2 * (total - hits) - hits, total - hits)
    else:
        wrongly, missed = counts.sum(0) - right, counts.sum(1) - right
        metric._update_state(right, wrongly, total - (wrongly + missed + right), missed)


def _class_confusion(metric: Any, table: Confusion) -> None:
    metric.confmat += table.counts


_BY_CLASS = (MulticlassStatScores, MulticlassConfusionMatrix)
_KINDS: dict[type[Metric], Count] = {
    MulticlassStatScores: _class_stat_scores,
    MulticlassConfusionMatrix: _class_confusion,
    BinaryStatScores: _stat_scores,
    BinaryConfusionMatrix: _confusion,
    BinaryPrecisionRecallCurve: _curve,
}


class Rule:
    """How a metric and all its copies count from tables; tried first, on a part of the first batch that has a table."""

    def __init__(self, metric: Metric) -> None:
        self._count = counter(metric)
        self._tried = False
        self.classes: int | None = getattr(metric, "num_classes", None) if isinstance(metric, _BY_CLASS) else None
        """Of a metric that counts from class numbers."""

    def table(self, outputs: Any, target: Any) -> Table | Confusion | None:
        return table(outputs, target) if self.classes is None else confusion(outputs, target, self.classes)

    @property
    def takes_tables(self) -> bool:
        return self._count is not None

    def found(self, metric: Metric, outputs: Tensor, target: Tensor) -> Count | None:
        """How to count; None where it was seen to differ from the metric's own update."""
        count = self._count
        if count is not None and not self._tried:
            scores, labels = outputs.flatten()[:_TRIED], target.flatten()[:_TRIED]
            part = self.table(scores, labels)
            if part is not None:
                if not _agree(metric, count, scores, labels, part):
                    self._count = None
                self._tried = True  # now: until then other workers try it, too
        return self._count


def _agree(metric: Metric, count: Count, scores: Tensor, labels: Tensor, part: Any) -> bool:
    plain, counted = metric.clone(), metric.clone()
    for each in (plain, counted):
        each.reset()
    plain.update(scores, labels)
    count(counted, part)
    mine: dict[str, Any] = plain.metric_state
    its: dict[str, Any] = counted.metric_state
    return all(torch.equal(mine[name], its[name]) for name in mine)


class Counting:
    """A metric that adds up whole numbers, updated from tables where that gives the same."""

    def __init__(self, metric: Metric, rule: Rule | None) -> None:
        self.metric, self.rule = metric, rule

    @property
    def takes_tables(self) -> bool:
        return self.rule is not None and self.rule.takes_tables

    def update(self, outputs: Any, target: Any, found: Table | Confusion | None) -> None:
        """With the table, if there is one and this metric can."""
        count = None if found is None or self.rule is None else self.rule.found(self.metric, outputs, target)
        if found is None or count is None:
            self.metric.update(outputs, target)
            return
        count(self.metric, found)
        # What the wrapper around `update` does beside calling it:
        self.metric._computed = None
        self.metric._update_count += 1
