"""`Trainer`: the loop around the step. Its parts: training.py (an epoch), validation.py, course.py, report.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fulltilt.assist.beside import Metrics, MetricsBeside, named
from fulltilt.errors import InputError
from fulltilt.machine.ranks import rank, several, world
from fulltilt.train.augmenting import Augmentation, augments, describe, for_training, for_validation
from fulltilt.train.callbacks import Callback, as_callbacks
from fulltilt.train.checkpoint import Checkpoints
from fulltilt.train.config.config import Config, TrainingConfig
from fulltilt.train.config.file import as_settings
from fulltilt.train.course import Course
from fulltilt.train.losses import Losses, RollBackError
from fulltilt.train.ranks.group import restarted, start_until_exit
from fulltilt.train.ranks.parallel import Arranged, arrange
from fulltilt.train.ranks.shared import check_shared
from fulltilt.train.ranks.together import Rhythm, largest, summed
from fulltilt.train.report.history import History
from fulltilt.train.report.monitored import Monitored
from fulltilt.train.report.report import Report
from fulltilt.train.saving import OWN, Saving
from fulltilt.train.schedules import Schedules
from fulltilt.train.seeding import part_ways, seed_everything
from fulltilt.train.signals import StopSignals
from fulltilt.train.sources import as_feed, batches
from fulltilt.train.step.device import as_optimizers, check_weights
from fulltilt.train.step.step import HybridPrecisionTrainer
from fulltilt.train.training import Duties, Training
from fulltilt.train.unpacking import Unpacking
from fulltilt.train.validation import Validation
from fulltilt.words import many


class Trainer:
    """Trains a model: `fit`, `validate`, `resume`.

    Loaders may be DataLoaders, fulltilt feeds or any iterable of batches, (*inputs, target) or mappings. Everything but
    the model and the training data has a default. `config` is the section `training` of a configuration file, as a
    mapping or a `TrainingConfig`, or the whole file's content. Under torchrun the processes train together
    (docs/distributed.md).
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: Any,
        val_loader: Any = None,
        criterion: Callable[[Any, Any], Tensor] | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        scheduler: Any = None,
        config: TrainingConfig | Config | Mapping[str, Any] | None = None,
        device: str | torch.device = "auto",
        *,
        gpu_augmentation: Augmentation | None = None,
        metrics: Metrics | None = None,
        callbacks: Sequence[Callback] = (),
        target: int | str = "auto",
    ) -> None:
        """
        Args:
            criterion: loss of (outputs, target); None: what fits the target.
            optimizer: one or several; None: AdamW with the configuration's learning rate.
            scheduler: one or several; `scheduler_interval` says when they step.
            gpu_augmentation: for training batches; in validation only its size, normalisation and dtype apply.
            metrics: torchmetrics metrics of (outputs, target), for training and validation.
            target: which of a batch's values is the target, when "auto" can't tell: its number, or a mapping's key.
        """
        self.config, logging = as_settings(config)
        start_until_exit()
        if self.config.seed is not None:
            seed_everything(self.config.seed)
        part_ways(rank())
        self.is_main = rank() == 0
        self.history = History()
        self.callbacks = as_callbacks(callbacks)
        if not isinstance(model, nn.Module):
            raise InputError(f"the model must be a Module, found {type(model).__name__}")
        output = None if self.config.output is None else Path(self.config.output)
        if self.config.nan_policy == "rollback" and output is None:
            raise InputError("nan_policy rollback goes back to a checkpoint: set output, a folder for them")
        self._monitored = Monitored(
            self.config.monitor,
            self.config.monitor_mode,
            metrics={} if metrics is None else named(metrics),
            validates=val_loader is not None,
        )
        checkpoints = None if output is None else self._checkpoints(output)

        check_weights(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.config.lr) if optimizer is None else optimizer
        optimizers = as_optimizers(optimizer)
        schedules = Schedules(scheduler, self.config.scheduler_interval)
        self._arranged: Arranged = arrange(
            model, optimizers, self.config, device=self.config.device if device == "auto" else device
        )
        model = self._arranged.model
        self.stepper = HybridPrecisionTrainer(
            model,
            optimizers,
            loss=criterion,
            device=self._arranged.device,
            precision=self._arranged.precision,
            compile=self._arranged.compile,
            channels_last=self._arranged.channels_last,
            cuda_graph=self.config.cuda_graph,
            fused=self.config.fused,
            accumulate=self.config.accumulate,
            clip_norm=self.config.clip_norm,
            ema_decay=self.config.ema_decay,
            target=target if isinstance(target, int) else "auto",
            expected_steps=self._expected_steps(train_loader),
        )
        self._arranged.wrap(self.stepper)
        unpacking = Unpacking(model, target)
        seed = self.config.seed or 0
        source = as_feed(train_loader, self.device, name="train_loader", seed=seed)
        beside = metrics if self.config.train_metrics else None
        self._augmentation = source.augmentation if augments(source) else gpu_augmentation
        if self.config.use_gpu_augmentation is False and not augments(source):
            self._augmentation = None
        self._training = Training(
            self.stepper,
            source,
            Losses(model, self.stepper.optimizers, self.device, self.config.nan_policy),
            augment=for_training(gpu_augmentation, source, on=self.config.use_gpu_augmentation is not False),
            metrics=None if beside is None else MetricsBeside(beside, self.device, prefix="train_"),
            schedules=schedules,
            unpacking=unpacking,
            even=check_shared(source, batches(source), name="train_loader"),
        )
        self._validation: Validation | None = None
        if val_loader is not None:
            held_out = as_feed(val_loader, self.device, name="val_loader", seed=seed, beside=source)
            check_shared(held_out, batches(held_out), name="val_loader")
            self._validation = Validation(
                self.stepper,
                held_out,
                augment=for_validation(gpu_augmentation, held_out, source),
                metrics=None if metrics is None else MetricsBeside(metrics, self.device, prefix="val_"),
                unpacking=unpacking,
            )
        self._schedules = schedules
        updates = None if (steps := self._expected_steps(source)) is None else steps // self.config.accumulate
        schedules.check(optimizers, updates=updates, monitored=self._monitored)
        self._saving = Saving(checkpoints, self.stepper, source, schedules, config=self.config.model_dump(mode="json"))
        self._report = Report(logging, output, is_main=self.is_main, epochs=self.config.epochs)
        self._course = Course(self._saving, self._training, self._monitored, self._report, lr=self.config.lr)
        self._perf_interval = logging.perf_interval
        self._stop_asked = False
        self._rhythm = Rhythm()

    @property
    def model(self) -> nn.Module:
        """The model as it was given."""
        return self.stepper.model

    @property
    def device(self) -> torch.device:
        return self.stepper.device

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self._course.position.epoch

    @property
    def step(self) -> int:
        """Training batches stepped with, in all."""
        return self._course.position.step

    def stop(self) -> None:
        """End after this epoch; for callbacks."""
        self._stop_asked = True

    # --- what users call -----------------------------------------------------------------------------------------

    def fit(self) -> History:
        """Train until the configured epochs are over, or until SIGTERM or SIGINT (the state is saved first)."""
        if self._should_resume():
            self.resume()
        losses, self._stop_asked = self._training.losses, False
        self.history = History(best=self._monitored.best, monitored=self._monitored.name)
        arrived = len(losses.values)
        agreed = largest if several() else None
        with StopSignals(agreed) as signals, self._report as report, losses.guarded(), self._saving.at_rest_after():
            self._rhythm.begin(self.step)
            self._say_start()
            self.model.train()
            try:
                for callback in self.callbacks:
                    callback.on_start(self)
                self._epochs(signals)
                if signals.asked is not None:
                    self.history.stopped_by = signals.asked
                    where = "" if self._saving.folder is None else f", saved in {self._saving.folder}"
                    report.say("%s: leaving at step %d%s", signals.asked.name, self.step, where)
            finally:
                self.history.steps, self.history.losses = self.step, losses.values[arrived:]
                self._close(signals)
        return self.history

    def validate(self) -> dict[str, float]:
        """Loss and metrics over the validation data, with the averaged weights where there are some."""
        if self._validation is None:
            raise InputError("there is nothing to validate on: give the Trainer a val_loader")
        return self._validation.run(self._report.bar)

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Go on from a checkpoint: the given one, or the newest good one in `output`. Returns its step."""
        self._course.resume(path)
        if self._validation is not None and self.epoch >= self.config.eval_interval:
            self._validation.went_before()
        self.history.best = self._monitored.best
        return self.step

    # --- epochs --------------------------------------------------------------------------------------------------

    def _epochs(self, signals: StopSignals) -> None:
        if self.config.nan_policy == "rollback":
            self._course.save()  # there is always a way back
        while self.epoch < self.config.epochs and not (signals.asked or self._stop_asked or self._out_of_steps):
            try:
                self._run_epoch(signals)
            except RollBackError as bad:
                self._course.roll_back(bad)
                self.history.best = self._monitored.best
        if signals.asked is not None:
            self._course.save()
        self._saving.wait()

    def _run_epoch(self, signals: StopSignals) -> None:
        training, bar = self._training, self._report.bar
        self._course.begin_epoch()
        bar.begin(f"epoch {self.epoch + 1}/{self.config.epochs}", training.batches, training.losses.sums.batches)
        duties = Duties(next_step=self._next_due, do=partial(self._do_due, signals), refresh=self._refresh)
        complete = training.run(self._course.position, signals, duties, bar)
        signals.agree()
        if not complete:
            self._course.leave_epoch()
        if complete or signals.asked is None:
            self._end_epoch(complete=complete)

    def _end_epoch(self, *, complete: bool) -> None:
        """Validate, report, step the schedulers, save."""
        config, number = self.config, self.epoch + 1
        last = number >= config.epochs or self._out_of_steps
        record = self._record()
        aside = not complete or number % config.eval_interval > 0  # a longer run would not validate now
        trained = self._monitored.of(record)
        if self._validation is not None and (last or not aside):
            began = time.perf_counter()
            record |= self._validation.run(self._report.bar, aside=aside)
            record["val_seconds"] = time.perf_counter() - began
        monitored = self._monitored.of(record)
        if complete:
            self._schedules.epoch_ended(trained if aside else monitored)
            self._course.end_epoch()
        self.history.epochs.append(record)
        self._report.epoch(record, self.stepper.get_performance_stats(), step=self.step)
        for callback in self.callbacks:
            callback.on_epoch_end(self, record)
        self._stop_asked = bool(largest(self._stop_asked))
        improved = self._monitored.improves(monitored)
        self.history.best = self._monitored.best
        every = config.checkpoint_every_steps
        due = number % config.checkpoint_interval == 0 or (every is not None and self.step % every == 0)
        if due or last or self._stop_asked or (improved and config.keep_best):
            self._course.save(monitored)

    def _record(self) -> dict[str, Any]:
        sums = self._training.losses.sums
        loss_sum, loss_samples, samples = summed([sums.loss_sum, sums.loss_samples, sums.samples], self.device)
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "train_loss": loss_sum / loss_samples if loss_samples else float("nan"),
            "lr": float(self.stepper.optimizers[0].param_groups[0]["lr"]),
            "samples": round(samples),
            "seconds": sums.seconds,
            "samples_per_second": samples / max(sums.seconds, 1e-9),
            "wait_share": sums.waited / max(sums.seconds, 1e-9),
        }
        if sums.bad_losses:
            record["bad_losses"] = sums.bad_losses
            if not loss_samples:
                text = "none of epoch %d's %d losses was a number: nothing is learnt; look at the data, or lower lr"
                self._report.say(text, self.epoch + 1, sums.bad_losses, level=WARNING)
        if self._training.metrics is not None:
            record |= self._training.metrics.compute()
        return record

    # --- between two steps ---------------------------------------------------------------------------------------

    def _next_due(self) -> int:
        """The next step after which there is something to do."""
        step, done = self.step, self._training.losses.sums.batches
        due = [step + self._perf_interval - done % self._perf_interval]
        if (every := self.config.checkpoint_every_steps) is not None:
            due.append(step + every - step % every)
        if self.config.max_steps is not None:
            due.append(self.config.max_steps)
        if several():
            due.append(self._rhythm.due)
        return min(due)

    def _do_due(self, signals: StopSignals) -> bool:
        """Perf line, checkpoint; True to stop in the middle of the epoch."""
        done, every = self._training.losses.sums.batches, self.config.checkpoint_every_steps
        if done % self._perf_interval == 0:
            self._training.losses.look()
            stats = self.stepper.get_performance_stats()
            loss = self._training.losses.last
            self._report.perf(stats, epoch=self.epoch + 1, batch=done, step=self.step, loss=loss)
        if several() and self.step >= self._rhythm.due:
            signals.agree()
            self._rhythm.went_on(self.step)
        if done == self._training.batches:
            return False  # the feed stands in the next epoch already: what is due is done at this one's end
        if every is not None and self.step % every == 0 and not self._out_of_steps:
            self._course.save_under_way()
        return self._out_of_steps

    @property
    def _out_of_steps(self) -> bool:
        return self.config.max_steps is not None and self.step >= self.config.max_steps

    def _refresh(self) -> None:
        sums, training = self._training.losses.sums, self._training
        left = None
        if training.batches is not None:
            left = training.batches * (self.config.epochs - self.epoch) - sums.batches
            if self.config.max_steps is not None:
                left = min(left, self.config.max_steps - self.step)
        stats = self.stepper.get_performance_stats if self.device.type == "cuda" else None
        self._report.refresh(sums.batches, sums.samples, sums.waited, loss=training.losses.last, left=left, stats=stats)

    def _checkpoints(self, output: Path) -> Checkpoints:
        return Checkpoints(
            output / "checkpoints",
            keep_last=self.config.keep_last,
            keep_best=self.config.keep_best,
            mode=self._monitored.mode,
            figure=self._monitored.name,
            sharded=several() or "auto",
            own=OWN,
        )

    # --- beginning and end ---------------------------------------------------------------------------------------

    def _should_resume(self) -> bool:
        """As `resume` in the configuration asks; not where the program has, and not after steps of its own."""
        wanted = restarted() if self.config.resume == "auto" else self.config.resume
        return wanted and not self._course.resumed and self.step == 0 and self._saving.exist()

    def _say_start(self) -> None:
        config, report = self.config, self._report
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        what = f"{type(self.model).__name__} ({parameters:,} parameters)"
        per_epoch = "" if (count := self._training.batches) is None else f" of {many(count, 'batch', 'batches')}"
        report.say("training %s on %s: %s%s", what, self.device, many(config.epochs, "epoch", "epochs"), per_epoch)
        if self._arranged.parallel is not None:
            found = self._arranged.parallel
            report.say("parallel: %s over %d processes (%s)", found.value, world(), found.reason)
        if self._augmentation is not None:
            where = "in the feed" if self._training.augment is None else f"on {self.device}"
            report.say("augmentation is on, in training only, %s: %s", where, describe(self._augmentation))
        if self.step == 0 and self._saving.folder is not None and self._saving.exist():
            report.say("%s holds checkpoints of an earlier run, which give way to this one's", self._saving.folder)
        if self.epoch >= config.epochs:
            report.say("nothing is left to do: %d of %d epochs are over; raise epochs", self.epoch, config.epochs)
        report.write("start", {"epoch": self.epoch, "config": config.model_dump(mode="json")}, step=self.step)

    def _close(self, signals: StopSignals) -> None:
        asked = None if signals.asked is None else signals.asked.name
        end = {"stopped_by": asked, **self.history.last, "step": self.step}
        self._report.write("end", end, step=self.step)
        for callback in self.callbacks:
            callback.on_end(self)

    def _expected_steps(self, loader: Any) -> int | None:
        """How many steps a choice of the step has to pay off in."""
        try:
            steps = len(loader) * self.config.epochs
        except TypeError:
            return self.config.max_steps
        return steps if self.config.max_steps is None else min(steps, self.config.max_steps)
