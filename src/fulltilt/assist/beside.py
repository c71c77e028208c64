"""torchmetrics beside the step: outputs and targets are gathered, copied out without a wait, and counted by threads.

    step ─► some batches, on the device ─► side stream: pinned memory ─► Lane: metrics that count whole numbers
                                                                     └─► Lane: all others, one batch after another

An update is a dozen small kernels and often a wait for the device: too much for every step of a small model. Metrics
that only count (accuracy, IoU, F1, confusion matrices: integer states) get the gathered batches joined into one, which
counts the same. The others, whose sums of floats would round differently, get them one after another. So the values are
those of an update in every step, to the last bit. Where the CPU can't keep up, metrics that count move to the device.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from fulltilt.assist.assisted import workers_for
from fulltilt.assist.balance import metrics_on_device
from fulltilt.assist.handover import Handover
from fulltilt.assist.lanes import UNFIT, Lane, Pair, Parcel, add_counts, counts_only, unfit
from fulltilt.assist.tables import LEAST_SCORES, takes_labels
from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision

log = logging.getLogger("fulltilt.assist")

GATHERED_BATCHES = 512
"""Many, because handing over takes the loop a tenth of a millisecond, longer than a small model's step; and a thread
that counts takes the interpreter from the loop now and then."""
GATHERED_BYTES = 64 << 20
"""Outputs and targets kept on the device meanwhile."""
_SHARED_BATCHES = 32
"""At most, of those that lie where a DataLoader's worker has put them: each holds an open file, and a process may have
a thousand."""
_LOOK_SECONDS = 2.0
"""How often it is looked at whether the CPU keeps up; at once when the loop has waited for `_PATIENCE_SECONDS`."""
_PATIENCE_SECONDS = 0.1
_LATELY = 8
"""Hand-overs from which the loop's own rate is taken."""

Metrics = Metric | MetricCollection | Mapping[str, Metric]
_CPU = torch.device("cpu")


class MetricsBeside:
    """Metrics of one phase, training or validation."""

    def __init__(
        self, metrics: Metrics, device: torch.device, *, prefix: str, workers: int | Literal["auto"] = "auto"
    ) -> None:
        """
        Args:
            metrics: are copied: training and validation count apart.
            workers: threads for metrics that count whole numbers; the others have one more.
        """
        self._prefix, self._device = prefix, device
        own = {name: metric.clone().to(_CPU) for name, metric in named(metrics).items()}
        for metric in own.values():
            metric.persistent(True)  # so that a checkpoint in mid-epoch holds the counts so far
            metric.reset()
        self._names = tuple(own)
        self._workers = workers_for("assist", workers)
        counting = {name: metric for name, metric in own.items() if counts_only(metric)}
        others = {name: metric for name, metric in own.items() if name not in counting}
        self._counting = Lane(counting, sets=self._workers, joins=True)
        self._others = Lane(others, sets=1, joins=False)
        self._there: dict[str, Metric] = {}
        """Metrics on the device; those that count have a copy in the lane, too."""
        self.decision: Decision[frozenset[str]] | None = None
        """Which are computed on the device, and why; None until that was looked at."""
        self._classes_do = all(takes_labels(metric) for metric in own.values())
        """The class with the highest score is all that is looked at: scores need not leave the device."""
        self._handover = Handover()
        self._gathered: list[Pair] = []
        self._bytes = 0
        self._first = True
        self._most = 1  # what a metric can't take shows at the first batch, not a hundred later
        self._marks: deque[tuple[float, int, float]] = deque(maxlen=_LATELY)
        """Time, batches and seconds waited, at the latest hand-overs."""
        self._begin()

    def _begin(self) -> None:
        self._looked = time.perf_counter()
        self._batches, self._waited, self._waited_before = 0, 0.0, 0.0
        self._marks.clear()

    def add(self, outputs: Any, target: Any) -> None:
        """Note a batch; now and then, hand over what was noted. Waits only while too much waits already."""
        outputs = _aligned(outputs, target)
        self._gathered.append((outputs, target))
        self._bytes += _bytes(outputs) + _bytes(target)
        if len(self._gathered) >= self._most or self._bytes >= GATHERED_BYTES:
            most = _most(self._gathered[-2:])
            self.hand_over()
            if self._first:
                self.wait()
                self._first = False
            self._most = most

    def hand_over(self) -> None:
        """Have what was gathered counted."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        self._check()
        if not gathered:
            return
        self._batches += len(gathered)
        together = _together(gathered)
        lanes = [lane for lane in (self._counting, self._others) if any(n not in self._there for n in lane.metrics)]
        if lanes:
            parcel = self._parcel(gathered, together)
            self._waited += sum(lane.put(parcel) for lane in lanes)
        for name, metric in self._there.items():
            joined = together if name in self._counting.metrics and _may_join(gathered) else None
            for outputs, target in gathered if joined is None else [joined]:
                try:
                    metric.update(outputs.detach() if isinstance(outputs, Tensor) else outputs, target)
                except UNFIT as error:
                    raise unfit(name, outputs, target, error) from error
        if self._device.type == "cuda":
            self._look(time.perf_counter())

    def wait(self) -> None:
        """Until all that was handed over is counted."""
        self._counting.drain()
        self._others.drain()
        self._check()

    def compute(self) -> dict[str, float]:
        """The values so far, over all ranks; counting starts anew."""
        found: dict[str, float] = {}
        for name, metric in self._whole().items():
            metric.to(_where_ranks_meet(self._device))
            found |= _numbers(f"{self._prefix}{name}", metric.compute())
            metric.reset()
            metric.to(self._device if self._is_only_there(name) else _CPU)
        self._begin()
        return found

    def reset(self) -> None:
        """Start anew."""
        self._gathered, self._bytes = [], 0
        for lane in (self._counting, self._others):
            lane.reset()
        for metric in self._there.values():
            metric.reset()
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """The counts so far."""
        items = self._whole().items()
        return {name: {"state": metric.state_dict(), "updates": metric._update_count} for name, metric in items}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self.reset()
        for name, metric in self._whole().items():
            if name in state:
                metric.load_state_dict(state[name]["state"])
                metric._update_count = int(state[name]["updates"])
                metric.to(self._device if self._is_only_there(name) else _CPU)

    def close(self) -> None:
        """End the threads."""
        self._counting.close()
        self._others.close()

    def _whole(self) -> dict[str, Metric]:
        """Each metric with everything counted so far."""
        self.hand_over()
        self.wait()
        for name, metric in self._counting.metrics.items():
            if name in self._there:
                add_counts(metric, self._there[name])
        found = self._there | self._others.metrics | self._counting.metrics
        return {name: found[name] for name in self._names}

    def _is_only_there(self, name: str) -> bool:
        return name in self._there and name not in self._counting.metrics

    def _parcel(self, gathered: Sequence[Pair], together: Pair | None) -> Parcel:
        """Copied out as one piece, where they can be; the batches are then parts of it."""
        without = frozenset(self._there)
        if together is None:
            batches, _, ready = self._handover.take(list(gathered))
            return Parcel(count=len(batches), batches=lambda: batches, ready=ready, without=without)
        if self._classes_do and self._device.type == "cuda" and not self._first:  # the first time, scores are looked at
            together = _guessed(*together)
        (outputs, target), _, ready = self._handover.take(together)
        sizes = [each.shape[0] for _, each in gathered]
        return Parcel(
            count=len(sizes),
            batches=lambda: list(zip(outputs.split(sizes), target.split(sizes), strict=True)),
            joined=(outputs, target) if _may_join(gathered) else None,
            ready=ready,
            without=without,
        )

    def _look(self, now: float) -> None:
        """Whether the CPU keeps up with the loop as it goes when it waits for no metric."""
        self._marks.append((now, self._batches, self._waited))
        due = now - self._looked >= _LOOK_SECONDS or self._waited - self._waited_before >= _PATIENCE_SECONDS
        if not due or len(self._marks) < _LATELY // 2:
            return
        self._looked, self._waited_before = now, self._waited
        began, batches, waited = self._marks[0]
        elapsed = max(now - began - (self._waited - waited), 1e-6)
        self._place((self._batches - batches) / elapsed)

    def _place(self, rate: float) -> None:
        """Send to the device what the CPU can't do at this rate, or bring back what it could."""
        before, decisions = set(self._there), []
        for lane, workers in ((self._counting, self._workers), (self._others, 1)):
            here = {name for name in self._there if name in lane.metrics}
            costs = {name: lane.seconds_per_batch[name] for name in lane.metrics if name in lane.seconds_per_batch}
            if not costs:
                continue
            decision = metrics_on_device(costs, batches_per_second=rate, workers=workers, there=here)
            decisions.append(decision)
            if lane is self._others:  # sums of floats stay where they have gone to: each move costs a wait
                for name in decision.value:
                    self._there[name] = lane.drop(name).to(self._device)
                continue
            for name in decision.value - here:
                self._there[name] = lane.metrics[name].clone().to(self._device)
                self._there[name].reset()
            if here - decision.value:
                self.wait()
            for name in here - decision.value:
                add_counts(lane.metrics[name], self._there.pop(name))
        if not decisions:
            return
        reason = "; ".join(decision.reason for decision in decisions)
        self.decision = Decision(
            value=frozenset(self._there), reason=reason, evidence={"lanes": [d.evidence for d in decisions]}
        )
        if set(self._there) != before:
            log.info("metrics on %s: %s; %s", self._device, ", ".join(sorted(self._there)) or "none", reason)

    def _check(self) -> None:
        failure = self._counting.failure or self._others.failure
        if failure is not None:
            raise failure


def named(metrics: Metrics) -> dict[str, Metric]:
    """Each metric with a name; a collection's are taken apart."""
    if isinstance(metrics, MetricCollection):
        return dict(metrics.items(keep_base=True, copy_state=False))
    if isinstance(metrics, Metric):
        return {type(metrics).__name__.lower(): metrics}
    if not isinstance(metrics, Mapping):
        raise InputError(
            f"metrics is {_said(metrics)}; expected a torchmetrics Metric, a MetricCollection or a mapping of names to "
            "Metrics, such as {'accuracy': MulticlassAccuracy(num_classes=10)}"
        )
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            raise InputError(f"metrics: {name} is {_said(metric)}; expected a torchmetrics Metric")
    return dict(metrics)


def _said(found: Any) -> str:
    return f"the class {found.__name__}, not one made of it" if isinstance(found, type) else type(found).__name__


def _where_ranks_meet(device: torch.device) -> torch.device:
    """The CPU, or the GPU with a group that knows nothing else."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1 or device.type == "cpu":
        return _CPU
    return _CPU if "cpu:" in str(dist.get_backend_config()) else device


def _bytes(part: Any) -> int:
    return part.nbytes if isinstance(part, Tensor) else GATHERED_BYTES // 8


def _most(latest: Sequence[Pair]) -> int:
    """How many batches like the latest may be gathered.

    They may be parts of something larger, which stays as long as they do: it counts, unless the batch before is a part
    of the same. Two at least, so that there is one before.
    """
    before, last = latest[0] if len(latest) > 1 else (None, None), latest[-1]
    held, most = 0, GATHERED_BATCHES
    for one, other in zip(last, before, strict=True):
        if isinstance(one, Tensor):
            memory = one.untyped_storage()
            shared = isinstance(other, Tensor) and other.untyped_storage().data_ptr() == memory.data_ptr()
            held += 0 if shared else memory.nbytes()
            if one.device == _CPU and one.is_shared():  # type: ignore[no-untyped-call]
                most = _SHARED_BATCHES
    return max(2, min(most, math.ceil(GATHERED_BYTES / max(1, held))))


def _aligned(outputs: Any, target: Any) -> Any:
    """Scores N×1×… for a target N×…, as a loss for masks takes them, too."""
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor) or outputs.dim() != target.dim() + 1:
        return outputs
    fits = outputs.shape[1] == 1 and outputs.shape[2:] == target.shape[1:]
    return outputs.squeeze(1) if fits else outputs


def _together(gathered: Sequence[Pair]) -> Pair | None:
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


def _guessed(outputs: Tensor, target: Tensor) -> Pair:
    """Class numbers for scores of large batches: an eighth or less to copy, and the CPU need not look for the highest.

    Both devices take the first of several that are highest.
    """
    scores = outputs.is_floating_point() and outputs.dim() == target.dim() + 1 and outputs.shape[1] <= 256
    if not scores or target.numel() < LEAST_SCORES or outputs.shape[2:] != target.shape[1:]:
        return outputs, target
    return outputs.detach().argmax(1).to(torch.uint8), target


def _may_join(gathered: Sequence[Pair]) -> bool:
    """Whether batches that are in one piece count the same as one by one.

    Scores of the target's own shape don't: torchmetrics takes them for logits if any of an update's is outside [0, 1],
    so a batch may be read otherwise alone than in company.
    """
    outputs, target = gathered[0]
    return len(gathered) == 1 or not (outputs.is_floating_point() and outputs.dim() != target.dim() + 1)


def _numbers(name: str, value: Any) -> dict[str, float]:
    """A metric's value as numbers: one, or one for each class or key."""
    if isinstance(value, Mapping):
        return {key: number for part, each in value.items() for key, number in _numbers(f"{name}_{part}", each).items()}
    flat = torch.as_tensor(value).detach().flatten().tolist()
    return {name: float(flat[0])} if len(flat) == 1 else {f"{name}_{i}": float(v) for i, v in enumerate(flat)}
