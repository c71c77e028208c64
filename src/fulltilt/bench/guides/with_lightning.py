"""Lightning with the same model, data and loss: as it comes, and as somebody who knows it well would set it."""

from __future__ import annotations

import logging
import warnings
from contextlib import nullcontext, suppress
from typing import Any, cast

import torch
from torch import Tensor

from fulltilt.bench.guides.meter import Metered, TimeUpError
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    STOPPED,
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
from fulltilt.train.config.config import Config
from fulltilt.train.step.roles import split


def run(order: Order, answer: Answer) -> None:
    peer = peer_for(order, answer)
    config = peer.config
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    train, val = plain.loaders(config, **peer.loading)
    steps = steps_for(order, most=len(train) * config.training.epochs)
    rhythm, bursts = Rhythm(every_steps=len(train) * config.training.eval_interval), comes_in_bursts(train)
    whole = bursts and steps >= 2 * len(train)
    counts = whole or not peer.tuned  # else workers fill their queues while the model is compiled: too good a rate
    meter = meter_for(patience(order), steps=steps, whole=whole)
    module = _module(config, steps=steps, per_epoch=len(train), fast=peer.fast)
    trainer = _trainer(order, config, steps, tuned=peer.tuned)

    def note() -> None:
        note_meter(answer, meter, rhythm)

    try:
        with counting(note) if counts else nullcontext():
            trainer.fit(module, Metered(train, meter), val)
        meter.finish()
        if val is not None:
            with rhythm.timed():
                trainer.validate(module, val, verbose=False)
            answer.metric, answer.steps = module.figures.get(recipe_of(order).metric), steps
    except TimeUpError:
        add_note(answer, STOPPED)
    if counts:
        note()
        return
    answer.write(order.answer)
    meter = meter_for(order.seconds, whole=bursts)
    module.scheduled = False
    train, val = plain.loaders(config, **peer.loading)  # new workers: those before had filled their queues
    with suppress(TimeUpError), counting(note):
        _trainer(order, config, -1, tuned=True).fit(module, Metered(train, meter), val)
    note()


def _trainer(order: Order, config: Config, steps: int, *, tuned: bool) -> Any:
    import lightning.pytorch as pl

    settings: dict[str, Any] = {}
    if tuned:
        settings = {
            "precision": "bf16-mixed" if torch.cuda.is_available() else None, "benchmark": True, "logger": False,
            "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
            "check_val_every_n_epoch": config.training.eval_interval,
        }  # fmt: skip
    return pl.Trainer(
        max_steps=steps, max_epochs=-1, accelerator="auto", devices=1, default_root_dir=order.folder,
        gradient_clip_val=config.training.clip_norm, **settings,
    )  # fmt: skip


def _module(config: Config, *, steps: int, per_epoch: int, fast: bool) -> Any:
    """A LightningModule; made inside a function, for its base class is an optional package."""
    import lightning.pytorch as pl

    training = config.training.model_copy(update={"max_steps": steps})
    loss = loss_of(training)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model(config)
            if fast:
                last_weights(self.model)
            self.forward_model: Any = torch.compile(self.model) if fast else self.model
            self.metrics = torch.nn.ModuleDict(
                {name: make_metric(f"metrics.{name}", metric) for name, metric in config.metrics.items()}
            )
            self.figures: dict[str, float] = {}
            self.scheduled = True

        def training_step(self, batch: Any, _index: int) -> Tensor:
            found = self._loss(batch, self.forward_model)[0]
            self.log("train_loss", found)
            return found

        def validation_step(self, batch: Any, _index: int) -> None:
            _, outputs, target = self._loss(batch, self.model)  # compiling it would take a minute
            for metric in self.metrics.values():
                cast("Any", metric).update(in_float(outputs), target)

        def on_validation_epoch_end(self) -> None:
            self.figures |= figures_of(dict(self.metrics.items()))

        def configure_optimizers(self) -> Any:
            optimizer = make_optimizer(self.model, training)
            scheduler = make_scheduler(optimizer, training, per_epoch) if self.scheduled else None
            if scheduler is None:
                return optimizer
            each = "step" if plain.each_step(training) else "epoch"
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": each}}

        def _loss(self, batch: Any, forward: Any) -> tuple[Tensor, Any, Any]:
            inputs, target = split(tuple(batch), "auto")
            if fast:
                inputs = tuple(last(part) for part in inputs)
            outputs = forward(*inputs)
            return loss(outputs, target), outputs, target

    return Module()
