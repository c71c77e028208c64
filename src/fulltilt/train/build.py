"""From a configuration to a Trainer: model, optimizer, scheduler, loss, metrics."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer, lr_scheduler

from fulltilt.assist.beside import named
from fulltilt.errors import InputError
from fulltilt.train import models
from fulltilt.train.checkpoint.keep import Mode
from fulltilt.train.config.config import Config, MetricConfig, TrainingConfig
from fulltilt.train.config.data import make_feeds
from fulltilt.train.config.references import called, found
from fulltilt.train.loop import Trainer
from fulltilt.train.report.monitored import Monitored
from fulltilt.train.seeding import seed_everything
from fulltilt.train.sources import batches
from fulltilt.train.step.device import device_for

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": models.Mlp,
    "small_cnn": models.SmallCnn,
    "small_unet": models.SmallUnet,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
}

SCHEDULERS: dict[str, Callable[..., Any]] = {
    "cosine": lr_scheduler.CosineAnnealingLR,
    "step": lr_scheduler.StepLR,
    "onecycle": lr_scheduler.OneCycleLR,
    "linear": lr_scheduler.LinearLR,
    "plateau": lr_scheduler.ReduceLROnPlateau,
}


def make_trainer(config: Config) -> Trainer:
    """Everything that the configuration names, put together. Errors name the key that they come from."""
    training = config.training
    if training.seed is not None:
        seed_everything(training.seed)
    model = make_model(config)
    device = device_for(model, training.device)
    train, val, augmentation = make_feeds(config, device)
    optimizer = make_optimizer(model, training)
    metrics = {name: make_metric(f"metrics.{name}", metric) for name, metric in config.metrics.items()}
    monitored = Monitored(training.monitor, training.monitor_mode, metrics=named(metrics), validates=val is not None)
    scheduler = make_scheduler(optimizer, training, batches(train), mode=monitored.mode)
    return Trainer(
        model,
        train,
        val,
        make_loss(training),
        optimizer,
        scheduler,
        config,
        device,
        gpu_augmentation=augmentation,
        metrics=metrics or None,
    )


def make_model(config: Config) -> nn.Module:
    name, args = config.model.name, config.model.args
    model = called("model", MODELS.get(name) or found("model.name", name), args)
    if not isinstance(model, nn.Module):
        raise InputError(f"model.name: {name} returned {type(model).__name__}; expected a torch.nn.Module")
    return model


def make_optimizer(model: nn.Module, training: TrainingConfig) -> Optimizer:
    name = training.optimizer
    make = OPTIMIZERS.get(name) or found("training.optimizer", name)
    args = {"lr": training.lr, **training.optimizer_args}
    return called("training.optimizer", make, args, list(model.parameters()))  # type: ignore[no-any-return]


def make_loss(training: TrainingConfig) -> Callable[..., torch.Tensor] | None:
    name = training.loss
    return None if name is None else LOSSES.get(name) or found("training.loss", name)


def make_scheduler(
    optimizer: Optimizer, training: TrainingConfig, batches_per_epoch: int | None, *, mode: Mode = "min"
) -> Any:
    """The scheduler, its length taken from the run's where nothing else is said.

    Args:
        mode: whether the monitored figure is better when smaller ("min"), where a plateau of it is waited for.
    """
    name, args = training.scheduler, dict(training.scheduler_args)
    if name is None:
        return None
    length = training.epochs
    if each_step(training):
        steps = training.max_steps
        if batches_per_epoch is not None:
            whole = batches_per_epoch * training.epochs
            steps = whole if steps is None else min(steps, whole)
        if steps is not None:
            steps = -(-steps // training.accumulate)
        if steps is None and name in ("cosine", "onecycle", "linear"):
            raise InputError(f"training.scheduler: {name} has to know the number of steps; set training.max_steps")
        length = steps or 0
    given: dict[str, dict[str, Any]] = {
        "cosine": {"T_max": length},
        "step": {"step_size": max(1, length // 3)},
        "onecycle": {"max_lr": training.lr, "total_steps": length + 1},
        "linear": {"start_factor": 1.0, "end_factor": 0.01, "total_iters": length},
        "plateau": {"mode": mode},
    }
    make = SCHEDULERS.get(name) or found("training.scheduler", name)
    return called("training.scheduler", make, given.get(name, {}) | args, optimizer)


def each_step(training: TrainingConfig) -> bool:
    """Whether the scheduler steps with every step; otherwise with every epoch."""
    return (training.scheduler_interval or ("step" if training.scheduler == "onecycle" else "epoch")) == "step"


def make_metric(path: str, config: MetricConfig) -> Any:
    """One metric; `path` is where the configuration has it."""
    if ":" in config.name:
        return called(path, found(f"{path}.name", config.name), config.args)
    for module in ("torchmetrics.classification", "torchmetrics"):
        kind = getattr(importlib.import_module(module), config.name, None)
        if kind is not None:
            return called(path, kind, config.args)
    import torchmetrics

    near = difflib.get_close_matches(config.name, [*torchmetrics.classification.__all__, *torchmetrics.__all__], n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise InputError(f"{path}.name: torchmetrics has no {config.name!r}{hint} Others are named package.module:Class")
