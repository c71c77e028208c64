"""Lightning with the same model, data and loss: as it comes, and as somebody who knows it well would set it."""

from __future__ import annotations

import logging
import warnings
from typing import Any, cast

import torch
from torch import Tensor

from fulltilt.bench.guides.meter import Meter, Metered
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.peer import Peer, PeerLoop, measure_peer, peer_for
from fulltilt.bench.guides.setting import figures_of, in_float, last, last_weights, loss_of
from fulltilt.train.build import each_step, make_metric, make_model, make_optimizer, make_scheduler
from fulltilt.train.config.config import Config, TrainingConfig
from fulltilt.train.step.roles import split


def run(order: Order, answer: Answer) -> None:
    peer = peer_for(order, answer)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    measure_peer(_Loop(peer, order), order, answer)


class _Loop(PeerLoop):
    def __init__(self, peer: Peer, order: Order) -> None:
        super().__init__(peer, order)
        self._order = order
        self._module = _module(peer.config, self.training, per_epoch=self.per_epoch, fast=peer.fast)
        self._trainer = _trainer(order, peer.config, self.steps, tuned=peer.tuned)

    def train(self, meter: Meter) -> None:
        self._trainer.fit(self._module, Metered(self.train_loader, meter), self.val_loader)

    def validate(self) -> dict[str, float]:
        if self.val_loader is not None:
            self._trainer.validate(self._module, self.val_loader, verbose=False)
        figures: dict[str, float] = self._module.figures
        return figures

    def renew(self) -> None:
        super().renew()
        self._module.scheduled = False
        self._trainer = _trainer(self._order, self.peer.config, -1, tuned=True)


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


def _module(config: Config, training: TrainingConfig, *, per_epoch: int, fast: bool) -> Any:
    """A LightningModule; made inside a function, for its base class is an optional package."""
    import lightning.pytorch as pl

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
            each = "step" if each_step(training) else "epoch"
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": each}}

        def _loss(self, batch: Any, forward: Any) -> tuple[Tensor, Any, Any]:
            inputs, target = split(tuple(batch), "auto")
            if fast:
                inputs = tuple(last(part) for part in inputs)
            outputs = forward(*inputs)
            return loss(outputs, target), outputs, target

    return Module()
