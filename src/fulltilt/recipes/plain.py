"""The loop as it is usually written: a DataLoader, `.to(device)`, `loss.item()`, `torch.save`.

    python -m fulltilt.recipes.plain recipes/classification_before.yaml [key=value…]

It reads the file that `fulltilt train` reads, and does what the file says with torch alone: none of the package's
feeds, steps or loops is in it. So it is what they are measured against, and any other trainer can have its parts:
`loaders(config)`, `make_model(config)`, `make_loss(config.training)`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fulltilt.errors import FulltiltError, InputError
from fulltilt.feed.images.files import ImageFiles
from fulltilt.recipes.pictures import Pictures
from fulltilt.train.build import each_step, make_loss, make_metric, make_model, make_optimizer, make_scheduler
from fulltilt.train.config.config import Config, DataConfig, TrainingConfig
from fulltilt.train.config.data import image_files, make_augmentation, set_aside, val_args
from fulltilt.train.config.file import read_config
from fulltilt.train.config.references import called, found, is_reference
from fulltilt.train.seeding import seed_everything
from fulltilt.train.step.device import device_for
from fulltilt.train.step.roles import split

_LEFT_OUT: Final = {"data": ("cache", "video"), "training": ("ema_decay", "checkpoint_every_steps")}
"""What a plain loop does not do; a file that asks for it is refused."""


@dataclass(slots=True, kw_only=True)
class PlainHistory:
    """What came of a run, under the names that `Trainer.fit` has for it."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    """A record per epoch: train_loss, val_loss, metrics, samples, seconds and, of these, waited_seconds for data."""
    losses: array[float] = field(default_factory=lambda: array("d"))
    """The loss of every step."""

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's record."""
        return self.epochs[-1] if self.epochs else {}


def train_plainly(config: Config, *, each: Callable[[dict[str, Any]], None] = lambda _: None) -> PlainHistory:
    """Train what the configuration describes; `each` is given an epoch's record when the epoch is over."""
    _check(config)
    if config.training.seed is not None:
        seed_everything(config.training.seed)
    return _Loop(config, each).run()


def loaders(config: Config, **options: Any) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """DataLoaders for training and validation, as the section `data` says; `options` are DataLoader's own.

    `num_workers: auto` is 0 and `batch_size: auto` an error here; a loader that a callable gives is left as it is.
    """
    data, seed = config.data, config.training.seed or 0
    train, val = _source(data, ""), None
    if data.val_source is not None:
        classes = train.classes if isinstance(train, ImageFiles) else None
        val = _source(data, "val_", classes)
    elif data.val_share is not None:
        train, val = set_aside(train, data.val_share, seed)
    return _loader(train, config, options, training=True), (
        None if val is None else _loader(val, config, options, training=False)
    )


class _Loop:
    def __init__(self, config: Config, each: Callable[[dict[str, Any]], None]) -> None:
        training = config.training
        self._training, self._each = training, each
        self._model = make_model(config)
        self._device = device_for(self._model, training.device)
        self._model.to(self._device)
        self._train, self._val = loaders(config)
        self._loss = make_loss(training)
        if self._loss is None:
            raise InputError("training.loss: missing; a plain loop does not choose one")
        self._optimizer = make_optimizer(self._model, training)
        length = len(self._train) if hasattr(self._train, "__len__") else None
        self._scheduler = make_scheduler(self._optimizer, training, length)
        self._each_step = each_step(training)
        self._metrics = {name: make_metric(f"metrics.{name}", m).to(self._device) for name, m in config.metrics.items()}
        self._format = _precision(training)
        scales = self._format is torch.float16 and self._device.type == "cuda"
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=scales)
        if training.channels_last is True:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward: Any = torch.compile(self._model) if training.compile is True else self._model
        self.history = PlainHistory()

    def run(self) -> PlainHistory:
        for epoch in range(1, self._training.epochs + 1):
            began = time.perf_counter()
            record = {"epoch": epoch, **self._train_epoch()}
            last = epoch == self._training.epochs or self._is_over()
            if self._val is not None and (last or epoch % self._training.eval_interval == 0):
                record |= self._validate(self._val)
            if not self._each_step and self._scheduler is not None:
                plateau = isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                self._scheduler.step(*([record.get("val_loss", record["train_loss"])] if plateau else []))
            if self._training.output is not None and (last or epoch % self._training.checkpoint_interval == 0):
                self._save(Path(self._training.output), epoch)
            record["seconds"] = time.perf_counter() - began
            self.history.epochs.append(record)
            self._each(record)
            if last:
                break
        return self.history

    def _train_epoch(self) -> dict[str, Any]:
        self._model.train()
        losses: list[float] = []
        samples, waited, asked = 0, 0.0, time.perf_counter()
        for batch in self._train:
            waited += time.perf_counter() - asked
            inputs, target = self._moved(batch)
            self._optimizer.zero_grad()
            with self._autocast():
                outputs = self._forward(*inputs)
                loss = self._loss_of(outputs, target)
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if self._training.clip_norm is not None:
                self._scaler.unscale_(self._optimizer)
                nn.utils.clip_grad_norm_(self._model.parameters(), self._training.clip_norm)
            self._scaler.step(self._optimizer)
            self._scaler.update()
            if self._each_step and self._scheduler is not None:
                self._scheduler.step()
            losses.append(loss.item())
            self.history.losses.append(losses[-1])
            if self._training.train_metrics:
                for metric in self._metrics.values():
                    metric.update(outputs.detach(), target)
            samples += len(inputs[0])
            if self._is_over():
                break
            asked = time.perf_counter()
        if not losses:
            raise InputError("data.source gives no batch: is the data set smaller than one, with drop_last?")
        figures = self._figures("train") if self._training.train_metrics else {}
        return {"train_loss": sum(losses) / len(losses), **figures, "samples": samples, "waited_seconds": waited}

    @torch.no_grad()
    def _validate(self, loader: DataLoader[Any]) -> dict[str, float]:
        self._model.eval()
        total, samples = 0.0, 0
        for batch in loader:
            inputs, target = self._moved(batch)
            with self._autocast():
                outputs = self._forward(*inputs)
                loss = self._loss_of(outputs, target)
            total += loss.item() * len(inputs[0])
            samples += len(inputs[0])
            for metric in self._metrics.values():
                metric.update(outputs, target)
        return {"val_loss": total / samples, **self._figures("val")}

    def _moved(self, batch: Any) -> tuple[tuple[Any, ...], Any]:
        inputs, target = split(tuple(part.to(self._device) for part in batch), "auto")
        return inputs, target

    def _autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._format is None else torch.autocast(self._device.type, self._format)

    def _loss_of(self, outputs: Any, target: Any) -> Tensor:
        assert self._loss is not None
        return self._loss(outputs, target)

    def _figures(self, prefix: str) -> dict[str, float]:
        found = {f"{prefix}_{name}": float(metric.compute()) for name, metric in self._metrics.items()}
        for metric in self._metrics.values():
            metric.reset()
        return found

    def _save(self, folder: Path, epoch: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "epoch": epoch}
        torch.save(state, folder / f"plain-{epoch:04d}.pt")

    def _is_over(self) -> bool:
        return self._training.max_steps is not None and self.history.steps >= self._training.max_steps


def _check(config: Config) -> None:
    asked = [
        f"{section}.{key}"
        for section, keys in _LEFT_OUT.items()
        for key in keys
        if getattr(getattr(config, section), key) is not None
    ]
    asked += ["training.accumulate"] if config.training.accumulate != 1 else []
    asked += ["training.precision=tf32"] if config.training.precision == "tf32" else []  # a switch of the whole process
    if asked:
        raise InputError(f"{', '.join(asked)}: a plain loop does not do that; `fulltilt train` does")


def _precision(training: TrainingConfig) -> torch.dtype | None:
    """What to autocast to: only what the file asks for by name."""
    if training.precision == "auto":
        return torch.bfloat16 if training.use_amp else None
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(training.precision)


def _source(data: DataConfig, prefix: str, classes: list[str] | None = None) -> Any:
    path, name = f"data.{prefix}source", getattr(data, f"{prefix}source")
    if name is None:
        raise InputError("data.source: missing; give a folder of images, a .csv file or package.module:callable")
    if is_reference(name):
        return called(path, found(path, name), val_args(data) if prefix else data.args)
    return image_files(name, getattr(data, f"{prefix}masks"), classes)


def _loader(source: Any, config: Config, options: dict[str, Any], *, training: bool) -> DataLoader[Any]:
    data = config.data
    if isinstance(source, DataLoader):
        return source
    if data.batch_size == "auto":
        raise InputError("data.batch_size: 'auto' is not for a plain loop; give a number")
    if isinstance(source, ImageFiles):
        source = pictures(source, config, training=training)
    elif isinstance(source, tuple | list):
        source = TensorDataset(*map(torch.as_tensor, source))
    if not isinstance(source, Dataset):
        raise InputError(f"data.source: a plain loop takes a Dataset, files or tensors; found {type(source).__name__}")
    workers = 0 if data.num_workers == "auto" else data.num_workers
    given: dict[str, Any] = {
        "batch_size": data.batch_size if training else data.val_batch_size or data.batch_size,
        "shuffle": data.shuffle and training and not isinstance(source, IterableDataset),
        "num_workers": workers,
        "prefetch_factor": None if data.prefetch == "auto" or not workers else data.prefetch,
        "drop_last": data.drop_last and training,
    }
    return DataLoader(source, **(given | options))


def pictures(files: ImageFiles, config: Config, *, training: bool) -> Pictures:
    """Image files as a data set, augmented on the CPU as the section `gpu_augmentation` says."""
    named = config.data.features
    return Pictures(
        files,
        make_augmentation(config, config.training.seed or 0).settings,
        channels=config.data.channels,
        training=training and config.gpu_augmentation is not None,
        features=None if named is None else found("data.features", named),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fulltilt.recipes.plain", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    given = parser.parse_args(arguments)
    config = read_config(given.config, given.overrides, look_up=True)
    if config.training.output is None:
        training = config.training.model_copy(update={"output": str(Path("runs") / given.config.stem)})
        config = config.model_copy(update={"training": training})
    train_plainly(config, each=lambda record: print("  ".join(f"{k} {v:.4g}" for k, v in record.items()), flush=True))


if __name__ == "__main__":
    try:
        main()
    except FulltiltError as error:
        print(f"plain: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        print("plain: stopped; a loop as it is usually written does not resume", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
