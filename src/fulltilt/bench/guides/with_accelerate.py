"""Accelerate with the same model, data and loss: its tutorial's loop, and that loop tuned by hand."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from typing import Any

import torch

from fulltilt.bench.guides.meter import Meter, Metered, TimeUpError
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    STOPPED,
    Peer,
    Rhythm,
    add_note,
    comes_in_bursts,
    counting,
    figures_of,
    in_float,
    last,
    last_weights,
    loss_of,
    meter_for,
    note_meter,
    patience,
    peer_for,
    recipe_of,
    steps_for,
)
from fulltilt.recipes import plain
from fulltilt.train.build import make_metric, make_model, make_optimizer, make_scheduler
from fulltilt.train.step.roles import split


def run(order: Order, answer: Answer) -> None:
    peer = peer_for(order, answer)
    loop = _Loop(peer, order)
    rhythm, bursts = loop.rhythm, loop.bursts
    whole = bursts and loop.steps >= 2 * loop.per_epoch
    counts = whole or not peer.tuned  # else workers fill their queues while the model is compiled: too good a rate
    meter = meter_for(patience(order), steps=loop.steps, whole=whole)

    def note() -> None:
        note_meter(answer, meter, rhythm)

    try:
        with counting(note) if counts else nullcontext():
            loop.train(meter)
        meter.finish()
        with rhythm.timed():
            answer.metric, answer.steps = loop.validate().get(recipe_of(order).metric), loop.steps
    except TimeUpError:
        add_note(answer, STOPPED)
    if counts:
        note()
        return
    answer.write(order.answer)
    meter = meter_for(order.seconds, whole=bursts)
    loop.renew()
    with suppress(TimeUpError), counting(note):
        loop.train(meter)
    note()


class _Loop:
    """As Accelerate's documentation writes one."""

    def __init__(self, peer: Peer, order: Order) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        config, fast = peer.config, peer.fast
        self._peer = peer
        self._accelerator = Accelerator(
            mixed_precision="bf16" if fast else "no",
            dataloader_config=DataLoaderConfiguration(non_blocking=fast),
        )
        model = make_model(config)
        if fast:
            last_weights(model)
        loaders = plain.loaders(config, **peer.loading)
        self.per_epoch = per_epoch = len(loaders[0])
        self.bursts = comes_in_bursts(loaders[0])
        self.rhythm = Rhythm(every_steps=per_epoch * config.training.eval_interval)
        self.steps = steps_for(order, most=per_epoch * config.training.epochs)
        self._training = config.training.model_copy(update={"max_steps": self.steps})
        optimizer = make_optimizer(model, self._training)
        self._scheduler = make_scheduler(optimizer, self._training, per_epoch)
        self._model, self._optimizer, self._train, self._val = self._accelerator.prepare(model, optimizer, *loaders)
        self._forward: Any = torch.compile(self._model) if fast else self._model
        self._loss = loss_of(self._training)
        self._metrics = {
            name: make_metric(f"metrics.{name}", metric).to(self._accelerator.device)
            for name, metric in config.metrics.items()
        }

    def renew(self) -> None:
        """On without an end, with new workers: those before had filled their queues while the model was compiled."""
        self.steps, self._scheduler = sys.maxsize, None
        self._train, self._val = self._accelerator.prepare(*plain.loaders(self._peer.config, **self._peer.loading))

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
            if self._scheduler is not None and not plain.each_step(self._training):
                self._scheduler.step()
            if done < self.steps and epochs % self._training.eval_interval == 0:
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
        if self._training.clip_norm is not None:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self._training.clip_norm)
        self._optimizer.step()
        if self._scheduler is not None and plain.each_step(self._training):
            self._scheduler.step()

    def _forward_loss(self, batch: Any, forward: Any) -> tuple[Any, Any, Any]:
        inputs, target = split(tuple(batch), "auto")
        outputs = forward(*(map(last, inputs) if self._peer.fast else inputs))
        return self._loss(outputs, target), outputs, target
