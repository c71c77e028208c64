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
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from fulltilt.assist.assisted import workers_for
from fulltilt.assist.balance import metrics_on_device
from fulltilt.assist.gather import Pair, aligned, guessed, in_one_piece, may_join, most_like, size_of
from fulltilt.assist.handover import Handover
from fulltilt.assist.lanes import UNFIT, Lane, Parcel, add_counts, counts_only, unfit
from fulltilt.assist.meeting import any_failed, where_ranks_meet
from fulltilt.assist.tables import takes_labels
from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.decision import Decision
from fulltilt.machine.ranks import several

log = logging.getLogger("fulltilt.assist")

GATHERED_BATCHES = 512
"""Many, because handing over takes the loop a tenth of a millisecond, longer than a small model's step; and a thread
that counts takes the interpreter from the loop now and then."""
GATHERED_BYTES = 64 << 20
"""Outputs and targets kept on the device meanwhile."""
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
        self, metrics: Metrics, device: torch.device | str, *, prefix: str, workers: int | Literal["auto"] = "auto"
    ) -> None:
        """
        Args:
            metrics: are copied: training and validation count apart.
            workers: threads for metrics that count whole numbers; the others have one more.
        """
        self._prefix, self._device = prefix, torch.device(device)
        own = {name: metric.clone().to(_CPU) for name, metric in named(metrics).items()}
        for metric in own.values():
            for part in _parts(metric):
                part.persistent(True)  # so that a checkpoint in mid-epoch holds the counts so far
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
        self._first, self._closed = True, False
        self._most = 1  # what a metric can't take shows at the first batch, not a hundred later
        self._marks: deque[tuple[float, int, float]] = deque(maxlen=_LATELY)
        """Time, batches and seconds waited, at the latest hand-overs."""
        self._begin()

    def _begin(self) -> None:
        self._looked = time.perf_counter()
        self._empty, self._batches, self._waited, self._waited_before = True, 0, 0.0, 0.0
        self._marks.clear()

    def add(self, outputs: Any, target: Any) -> None:
        """Note a batch; now and then, hand over what was noted. Waits only while too much waits already."""
        outputs = aligned(outputs, target)
        if self._first:
            self._check_shares(outputs, target)
        self._gathered.append((outputs, target))
        self._bytes += size_of(outputs) + size_of(target)
        if len(self._gathered) >= self._most or self._bytes >= GATHERED_BYTES:
            most = most_like(self._gathered[-2:], batches=GATHERED_BATCHES, size=GATHERED_BYTES)
            self.hand_over()
            if self._first:
                self.wait()
                self._first = False
            self._most = most

    def _check_shares(self, outputs: Any, target: Any) -> None:
        """Of soft labels torchmetrics makes class numbers by cutting them off, and says nothing."""
        if not (isinstance(outputs, Tensor) and isinstance(target, Tensor)):
            return
        if target.is_floating_point() and target.dim() > 1 and target.shape == outputs.shape:
            for name, metric in (self._counting.metrics | self._others.metrics | self._there).items():
                if any(type(part).__name__.startswith("Multiclass") for part in _parts(metric)):
                    raise InputError(
                        f"metrics: {name} counts classes, and the targets, {tuple(target.shape)} {target.dtype}, are "
                        "shares of classes, as Mixup and CutMix make them: train_metrics: false leaves training's out"
                    )

    def hand_over(self) -> None:
        """Have what was gathered counted."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        self._check()
        if not gathered:
            return
        self._empty, self._batches = False, self._batches + len(gathered)
        together = in_one_piece(gathered)
        lanes = [lane for lane in (self._counting, self._others) if any(n not in self._there for n in lane.metrics)]
        if lanes:
            parcel = self._parcel(gathered, together)
            self._waited += sum(lane.put(parcel) for lane in lanes)
        for name, metric in self._there.items():
            joins = together is not None and name in self._counting.metrics and may_join(gathered)
            joined = together if joins else None
            for outputs, target in gathered if joined is None else [joined]:
                try:
                    metric.update(outputs.detach() if isinstance(outputs, Tensor) else outputs, target)
                except torch.OutOfMemoryError:
                    raise  # a RuntimeError, but not the batch's fault
                except UNFIT as error:
                    raise unfit(name, outputs, target, error) from error
        if self._device.type == "cuda":
            self._look(time.perf_counter())

    def wait(self) -> None:
        """Until all that was handed over is counted."""
        self._check()
        self._counting.drain()
        self._others.drain()
        self._check()

    def compute(self) -> dict[str, float]:
        """The values so far, over all ranks; counting starts anew. Where there was no batch, there are none.

        What has failed on one rank fails on all: the others would wait for it where they bring their counts together.
        """
        found: dict[str, float] = {}
        try:
            metrics = self._whole()
        except Exception:
            any_failed(self._meet_on, failed=True)
            raise
        if any_failed(self._meet_on, failed=False):
            raise FulltiltError("metrics failed on another rank, whose own output says why")
        if self._empty and not several():
            return found
        for name, metric in metrics.items():
            metric.to(self._meet_on)
            try:
                found |= _numbers(f"{self._prefix}{name}", metric.compute())
            except ValueError as error:
                raise InputError(f"metrics: {name} can't be computed: {error}") from error
            metric.reset()
            metric.to(self._device if self._is_only_there(name) else _CPU)
        self._begin()
        return found

    def reset(self) -> None:
        """Start anew."""
        self._check_open()
        self._gathered, self._bytes = [], 0
        for lane in (self._counting, self._others):
            lane.reset()
        for metric in self._there.values():
            metric.reset()
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """The counts so far."""
        return {
            name: {"state": metric.state_dict(), "updates": [part._update_count for part in _parts(metric)]}
            for name, metric in self._whole().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self.reset()
        for name, metric in self._whole().items():
            if name in state:
                metric.load_state_dict(state[name]["state"])
                saved = state[name]["updates"]  # a number in older checkpoints, which knew nothing of parts
                for part, updates in zip(_parts(metric), saved if isinstance(saved, list) else [saved], strict=False):
                    part._update_count = updates
                    self._empty = self._empty and not updates
                metric.to(self._device if self._is_only_there(name) else _CPU)

    def close(self) -> None:
        """End the threads; what has not been counted is lost."""
        self._closed = True
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

    @property
    def _meet_on(self) -> torch.device:
        return where_ranks_meet(self._device)

    def _is_only_there(self, name: str) -> bool:
        return name in self._there and name not in self._counting.metrics

    def _parcel(self, gathered: Sequence[Pair], together: Pair | None) -> Parcel:
        """Copied out as one piece, where they can be; the batches are then parts of it."""
        without = frozenset(self._there)
        if together is None:
            batches, _, ready = self._handover.take(list(gathered))
            return Parcel(count=len(batches), batches=lambda: batches, ready=ready, without=without)
        if self._classes_do and self._device.type == "cuda" and not self._first:  # the first time, scores are looked at
            together = guessed(*together)
        (outputs, target), _, ready = self._handover.take(together)
        sizes = [each.shape[0] for _, each in gathered]
        return Parcel(
            count=len(sizes),
            batches=lambda: list(zip(outputs.split(sizes), target.split(sizes), strict=True)),
            joined=(outputs, target) if may_join(gathered) else None,
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

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("these metrics were closed, and count no more; make another MetricsBeside")

    def _check(self) -> None:
        self._check_open()
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


def _parts(metric: Metric) -> list[Metric]:
    """The metric itself, and those in it: some only wrap others."""
    return [part for part in metric.modules() if isinstance(part, Metric)]


def _said(found: Any) -> str:
    return f"the class {found.__name__}, not one made of it" if isinstance(found, type) else type(found).__name__


def _numbers(name: str, value: Any) -> dict[str, float]:
    """A metric's value as numbers: one, or one for each class or key."""
    if isinstance(value, Mapping):
        return {key: number for part, each in value.items() for key, number in _numbers(f"{name}_{part}", each).items()}
    try:
        flat = torch.as_tensor(value).detach().flatten().tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"it gives a {type(value).__name__}, but only numbers can be noted; leave it out") from error
    return {name: float(flat[0])} if len(flat) == 1 else {f"{name}_{i}": float(v) for i, v in enumerate(flat)}
