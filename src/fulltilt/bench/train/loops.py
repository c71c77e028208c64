"""The whole Trainer as a contestant: with its log, metrics, bar and, where it is asked for, checkpoints."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fulltilt.bench.feed.measure import endless
from fulltilt.bench.feed.models import Step
from fulltilt.bench.ground import finish
from fulltilt.bench.train.workloads import Running, StepFactory, Workload
from fulltilt.feed import Feed, feed
from fulltilt.train import Trainer
from fulltilt.train.callbacks import Callback

_WARM_EPOCHS = 2
_PLAIN_STEPS = 200


def loop(*, checkpoint_every: int | None = None, from_memory: bool = False) -> StepFactory:
    """A Trainer whose batch is on the device already, or that is fed from the workload's data in memory."""

    def make(work: Workload) -> Running:
        from torchmetrics.classification import MulticlassAccuracy

        logging.getLogger("fulltilt").addHandler(logging.NullHandler())  # its lines are not the benchmark's
        place = tempfile.TemporaryDirectory(prefix="fulltilt-bench-")
        model = work.make_model().to(work.device)
        source = _fed(work) if from_memory else _OnDevice(work.batch, work.epoch_steps)
        epochs = _Epochs()
        training = {
            "epochs": 1_000_000, "output": place.name, "keep_last": 1, "keep_best": 0,
            "checkpoint_interval": 1_000_000, "checkpoint_every_steps": checkpoint_every, "monitor": "train_loss",
        }  # fmt: skip
        with contextlib.redirect_stderr(io.StringIO()):  # the bar is drawn, for nobody
            trainer = Trainer(
                model,
                source,
                optimizer=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
                config={"training": training, "logging": {"progress": True, "tensorboard": False}},
                device=work.device,
                metrics={"accuracy": MulticlassAccuracy(work.classes, average="micro", validate_args=False)},
                callbacks=[epochs],
            )

        def burst(seconds: float) -> float:
            epochs.until = time.perf_counter() + seconds
            epochs.spans = []
            stopped_by = trainer.fit().stopped_by
            if stopped_by is not None:  # the benchmark itself was asked to end
                raise SystemExit(128 + stopped_by)
            return sum(epochs.spans) / len(epochs.spans) / len(source)

        def close() -> None:
            source.close()
            place.cleanup()

        for _ in range(_WARM_EPOCHS):
            burst(0.0)
        plan = {name: {"value": decision.value} for name, decision in trainer.stepper.plan.items()}
        return Running(burst=burst, close=close, notes={"chosen": plan})

    return make


def plain_loader(work: Workload) -> Running:
    """As most scripts are written: a DataLoader, fp32, eager."""
    step = Step(work.make_model(), work.device, half=False, compiled=False)
    loader = DataLoader(TensorDataset(*_in_memory(work)), batch_size=work.samples, shuffle=True)

    def burst(seconds: float) -> float:
        batches = endless(loader)
        for _ in range(10):
            step(*(part.to(work.device) for part in next(batches)))
        finish(work.device)
        began, count = time.perf_counter(), 0
        while count < _PLAIN_STEPS or time.perf_counter() - began < seconds:
            step(*(part.to(work.device) for part in next(batches)))
            count += 1
        finish(work.device)
        return (time.perf_counter() - began) / count

    return Running(burst=burst)


class _Epochs(Callback):
    """Ends a fit after the first epoch that ends late enough, and times each from its beginning to its end."""

    def __init__(self) -> None:
        self.until = 0.0
        self.spans: list[float] = []
        self._began = 0.0

    def on_start(self, trainer: Trainer) -> None:  # noqa: ARG002
        self._began = time.perf_counter()

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:  # noqa: ARG002
        now = time.perf_counter()
        self.spans.append(now - self._began)
        self._began = now
        if now >= self.until:
            trainer.stop()


class _OnDevice(Feed):
    """One batch, again and again."""

    def __init__(self, batch: tuple[Tensor, ...], steps: int) -> None:
        super().__init__()
        self._batch, self._steps = batch, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for _ in range(self._steps):
            yield self._batch

    def set_epoch(self, epoch: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _in_memory(work: Workload) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    count = work.samples * work.epoch_steps
    return (
        torch.randn((count, *work.batch[0].shape[1:]), generator=draw),
        torch.randint(0, work.classes, (count, *work.batch[1].shape[1:]), generator=draw),
    )


def _fed(work: Workload) -> Feed:
    return feed(_in_memory(work), batch_size=work.samples, shuffle=True, device=work.device)
