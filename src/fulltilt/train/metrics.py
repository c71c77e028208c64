"""torchmetrics beside the step: outputs and targets of some batches are gathered, then updated with, all at once.

An update is a dozen small kernels and often a wait for the device: too much for every step of a small model. Metrics
that only count (accuracy, IoU, F1, confusion matrices: integer states) get the gathered batches joined into one, which
counts the same. The others, whose sums of floats would round differently, get them one after another. So the values are
those of an update in every step, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from fulltilt.errors import InputError

GATHERED_BATCHES = 128
"""Many, because an update that waits for the device leaves a gap behind it, as long as half a step of a small model."""
GATHERED_BYTES = 64 << 20
"""Outputs and targets kept on the device meanwhile."""

Metrics = Metric | MetricCollection | Mapping[str, Metric]


class MetricsBeside:
    """Metrics of one phase, training or validation."""

    def __init__(self, metrics: Metrics, device: torch.device, *, prefix: str) -> None:
        """
        Args:
            metrics: are copied: training and validation count apart.
        """
        self._prefix = prefix
        self._metrics = {name: metric.clone().to(device) for name, metric in named(metrics).items()}
        self._joined = {name: _counts(metric) for name, metric in self._metrics.items()}
        self._gathered: list[tuple[Any, Any]] = []
        self._bytes = 0
        self._most = 1  # what a metric can't take shows at the first batch, not a hundred later
        for metric in self._metrics.values():
            metric.persistent(True)  # so that a checkpoint in mid-epoch holds the counts so far
            metric.reset()

    def add(self, outputs: Any, target: Any) -> None:
        """Note a batch; now and then, update."""
        outputs = _aligned(outputs, target)
        self._gathered.append((outputs, target))
        for part in (outputs, target):
            known = isinstance(part, Tensor)
            self._bytes += part.numel() * part.element_size() if known else GATHERED_BYTES // 8
        if len(self._gathered) >= self._most or self._bytes >= GATHERED_BYTES:
            self.update()
            self._most = GATHERED_BATCHES

    def update(self) -> None:
        """Count what has been gathered."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        if not gathered:
            return
        joined = _join(gathered) if any(self._joined.values()) else None
        for name, metric in self._metrics.items():
            for outputs, target in [joined] if self._joined[name] and joined is not None else gathered:
                _update(name, metric, outputs, target)

    def compute(self) -> dict[str, float]:
        """The values so far; counting starts anew."""
        self.update()
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            found |= _numbers(f"{self._prefix}{name}", metric.compute())
            metric.reset()
        return found

    def reset(self) -> None:
        """Start anew."""
        self._gathered, self._bytes = [], 0
        for metric in self._metrics.values():
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """The counts so far."""
        self.update()
        return {name: {"state": metric.state_dict(), "updates": metric._update_count} for name, metric in self._items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self.reset()
        for name, metric in self._items():
            if name in state:
                metric.load_state_dict(state[name]["state"])
                metric._update_count = int(state[name]["updates"])

    def _items(self) -> list[tuple[str, Metric]]:
        return list(self._metrics.items())


def named(metrics: Metrics) -> dict[str, Metric]:
    """Each metric with a name; a collection's are taken apart."""
    if isinstance(metrics, MetricCollection):
        return dict(metrics.items(keep_base=True, copy_state=False))
    found = {type(metrics).__name__.lower(): metrics} if isinstance(metrics, Metric) else dict(metrics)
    for name, metric in found.items():
        if not isinstance(metric, Metric):
            raise InputError(f"metrics: {name} is {type(metric).__name__}; expected a torchmetrics Metric")
    return found


def _counts(metric: Metric) -> bool:
    """Whether it adds up integers and nothing else."""
    states = list(metric.metric_state.values())
    plain = not any(isinstance(child, Metric) for child in metric.children())
    return plain and bool(states) and all(isinstance(s, Tensor) and not s.is_floating_point() for s in states)


def _update(name: str, metric: Metric, outputs: Any, target: Any) -> None:
    try:
        metric.update(outputs, target)
    except (RuntimeError, TypeError, ValueError) as error:
        shapes = " and ".join(
            f"{tuple(part.shape)} {part.dtype}" if isinstance(part, Tensor) else type(part).__name__
            for part in (outputs, target)
        )
        raise InputError(f"metrics: {name} can't take outputs and targets of {shapes}: {error}") from error


def _aligned(outputs: Any, target: Any) -> Any:
    """Scores N×1×… for a target N×…, as a loss for masks takes them, too."""
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor) or outputs.dim() != target.dim() + 1:
        return outputs
    fits = outputs.shape[1] == 1 and outputs.shape[2:] == target.shape[1:]
    return outputs.squeeze(1) if fits else outputs


def _join(gathered: list[tuple[Any, Any]]) -> tuple[Any, Any] | None:
    """All batches as one, where they are tensors that differ in their first dimension alone.

    Scores of the target's own shape stay apart: torchmetrics takes them for logits if any of an update's is outside
    [0, 1], so a batch may be read otherwise alone than in company.
    """
    sides = list(zip(*gathered, strict=True))
    for side in sides:
        if not all(isinstance(part, Tensor) and part.dim() for part in side):
            return None
        if len({(part.shape[1:], part.dtype) for part in side}) > 1:
            return None
    if sides[0][0].is_floating_point() and sides[0][0].dim() != sides[1][0].dim() + 1:
        return None
    outputs, targets = (torch.cat(list(side)) for side in sides)
    return outputs, targets


def _numbers(name: str, value: Any) -> dict[str, float]:
    """A metric's value as numbers: one, or one for each class or key."""
    if isinstance(value, Mapping):
        return {key: number for part, each in value.items() for key, number in _numbers(f"{name}_{part}", each).items()}
    flat = torch.as_tensor(value).detach().flatten().tolist()
    return {name: float(flat[0])} if len(flat) == 1 else {f"{name}_{i}": float(v) for i, v in enumerate(flat)}
