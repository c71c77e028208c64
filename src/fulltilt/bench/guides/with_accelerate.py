"""Accelerate with the same model, data and loss: its tutorial's loop, and that loop tuned by hand."""

from __future__ import annotations

import sys
from typing import Any

import torch

from fulltilt.bench.guides.meter import Meter, Metered
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.peer import Peer, PeerLoop, measure_peer, peer_for
from fulltilt.bench.guides.setting import figures_of, in_float, last, last_weights, loss_of
from fulltilt.train.build import each_step, make_metric, make_model, make_optimizer, make_scheduler
from fulltilt.train.step.roles import split


def run(order: Order, answer: Answer) -> None:
    measure_peer(_Loop(peer_for(order, answer), order), order, answer)


class _Loop(PeerLoop):
    def __init__(self, peer: Peer, order: Order) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        config, fast = peer.config, peer.fast
        self._accelerator = Accelerator(
            mixed_precision="bf16" if fast else "no",
            dataloader_config=DataLoaderConfiguration(non_blocking=fast),
        )
        model = make_model(config)
        if fast:
            last_weights(model)
        super().__init__(peer, order)
        optimizer = make_optimizer(model, self.training)
        self._scheduler = make_scheduler(optimizer, self.training, self.per_epoch)
        self._model, self._optimizer, self._train, self._val = self._accelerator.prepare(
            model, optimizer, self.train_loader, self.val_loader
        )
        self._forward: Any = torch.compile(self._model) if fast else self._model
        self._loss = loss_of(self.training)
        self._metrics = {
            name: make_metric(f"metrics.{name}", metric).to(self._accelerator.device)
            for name, metric in config.metrics.items()
        }

    def renew(self) -> None:
        super().renew()
        self.steps, self._scheduler = sys.maxsize, None
        self._train, self._val = self._accelerator.prepare(self.train_loader, self.val_loader)

    def train(self, meter: Meter) -> None:
        source = Metered(self._train, meter)
        done = epochs = 0
        while done < self.steps:
            self._model.train()
            for batch in source:
                self._step(batch)
                done += 1
                if done >= self.steps:
                    break
            epochs += 1
            if self._scheduler is not None and not each_step(self.training):
                self._scheduler.step()
            if done < self.steps and epochs % self.training.eval_interval == 0:
                self.validate()

    def validate(self) -> dict[str, float]:
        if self._val is None:
            return {}
        self._model.eval()
        with torch.no_grad():
            for batch in self._val:
                _, outputs, target = self._forward_loss(batch, self._model)  # compiling it would take a minute
                for metric in self._metrics.values():
                    metric.update(in_float(outputs), target)
        return figures_of(self._metrics)

    def _step(self, batch: Any) -> None:
        self._optimizer.zero_grad()
        loss, _, _ = self._forward_loss(batch, self._forward)
        self._accelerator.backward(loss)
        if self.training.clip_norm is not None:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self.training.clip_norm)
        self._optimizer.step()
        if self._scheduler is not None and each_step(self.training):
            self._scheduler.step()

    def _forward_loss(self, batch: Any, forward: Any) -> tuple[Any, Any, Any]:
        inputs, target = split(tuple(batch), "auto")
        outputs = forward(*(map(last, inputs) if self.peer.fast else inputs))
        return self._loss(outputs, target), outputs, target
