"""*after*: `fulltilt train` with the recipe's file. On a GPU it is trained twice in one process: with as many samples
as *before* has seen, for the metric; then as a person starts it, with its trials and compiling, for the rates. Then its
limit is measured, with the very step that has trained.
"""

from __future__ import annotations

import gc
import time
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from fulltilt.bench.guides.figures import falls_short
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    add_note,
    forget_peak,
    note_device,
    recipe_of,
    settling,
    since_start,
    steps_for,
    with_training,
)
from fulltilt.train.build import make_trainer
from fulltilt.train.callbacks import Callback
from fulltilt.train.config.config import Config
from fulltilt.train.loop import Trainer
from fulltilt.tune import settle_batch_size

_LONGER = 10
"""On a GPU the file's epochs may be over in a second or two: it is trained on until there is enough to measure."""
_ENDLESS = 10**9
_SETTLE_SECONDS = 30.0
"""How long, after the first epoch, the feed may go on looking for its settings before it is measured all the same."""
UNSETTLED = f"its feed was still looking for its settings after {_SETTLE_SECONDS:g} s"
_SEEDS = 3
"""Are trained, all of them, where the first falls short of *before*: a short training's metric is a noisy one. To stop
at the first that lifts the mean far enough would be to look for one that does."""
_LIMIT_ROUNDS = 3
_LIMIT_STEPS = 3


def run(order: Order, answer: Answer) -> None:
    recipe = recipe_of(order)
    config = settle_batch_size(recipe.config("after", order.overrides, small=order.small))
    size = config.data.batch_size
    assert isinstance(size, int)
    answer.batch_size = size
    twice, validation = tries(), 0.0
    if order.samples is not None or not twice:
        steps = steps_for(order, size, most=config.training.max_steps or _ENDLESS)
        metrics: list[float] = []
        for seed in range(_SEEDS if twice else 1):
            short = with_training(
                config,
                max_steps=steps,
                seed=(config.training.seed or 0) + seed,
                output=f"{order.folder}/quality{seed or ''}",
            )
            trained = _trained(short, _Clock(0, None), None if twice else answer)
            metrics += [metric] if (metric := trained.metric(recipe.metric)) is not None else []
            answer.metric = fmean(metrics) if metrics else None
            answer.metrics, answer.steps = metrics if seed else [], trained.trainer.step
            if not twice:
                trained.note(order, answer)
                return
            answer.write(order.answer)
            validation = trained.validation_seconds
            del trained
            gc.collect()  # the trainer, its workers and its memory
            if not seed and (
                answer.metric is None or order.metric is None or not falls_short(answer.metric, order.metric)
            ):
                break
    config = with_training(config, epochs=_LONGER * config.training.epochs, output=f"{order.folder}/rates")
    clock = _Clock(1, order.seconds, validation, tunes=config.data.num_workers == "auto")
    _trained(config, clock, answer).note(order, answer)


def tries() -> bool:
    """Whether a training begins with trials and compiling. Without a GPU it does not: one training has it all."""
    return torch.cuda.is_available()


def _trained(config: Config, clock: _Clock, answer: Answer | None) -> _Trained:
    """
    Args:
        answer: what was measured until then goes there, should the process be asked to end meanwhile.
    """
    trainer = make_trainer(config)
    held = _Held(trainer)
    clock.held = held
    trainer.callbacks.append(clock)
    stopped_by = trainer.fit().stopped_by
    if stopped_by is not None:  # its time is up, or the benchmark was asked to end
        if answer is not None:
            clock.note(answer)
            note_device(answer)
        raise SystemExit(128 + stopped_by)
    return _Trained(trainer, clock, held)


class _Trained:
    """A training that is over, and what was seen of it."""

    def __init__(self, trainer: Trainer, clock: _Clock, held: _Held) -> None:
        self.trainer, self._clock, self._held = trainer, clock, held

    def metric(self, name: str) -> float | None:
        return self.trainer.history.last.get(name)

    @property
    def validation_seconds(self) -> float:
        return float(self.trainer.history.last.get("val_seconds", 0.0))

    def note(self, order: Order, answer: Answer) -> None:
        self._clock.note(answer)
        note_device(answer)
        plan = self.trainer.stepper.plan
        answer.plan = {name: decision.value for name, decision in plan.items()}
        answer.reasons = {name: decision.reason for name, decision in plan.items()} | self._clock.feed_reasons
        answer.feed = self._clock.feed
        answer.write(order.answer)
        answer.limit_per_second = limit(self.trainer, self._held.batch, seconds=order.seconds / 5)


class _Held:
    """The first batch that comes to the step is kept, for the limit; afterwards the step is as it was."""

    def __init__(self, trainer: Trainer) -> None:
        self.batch: tuple[Any, ...] = ()
        self._stepper = trainer.stepper
        self._step = trainer.stepper.train_step
        setattr(self._stepper, "train_step", self._first)  # noqa: B010  an instance's own, in the way of the class's

    def _first(self, *batch: Any) -> Any:
        if not self.batch:
            self.batch = tuple(part.clone() if isinstance(part, Tensor) else part for part in batch)
        return self._step(*batch)

    def let_go(self) -> None:
        self._stepper.__dict__.pop("train_step", None)


class _Clock(Callback):
    """Measures from the end of the epochs in which things are still chosen and compiled, until time is up.

    Such are also those in which the feed tries numbers of workers and shares of the GPU: each trial has its own rate.
    """

    def __init__(
        self, warm_epochs: int, seconds: float | None, validation_seconds: float = 0.0, *, tunes: bool = False
    ) -> None:
        """
        Args:
            validation_seconds: of one validation, where none falls into the measurement.
            tunes: the feed looks for its number of workers.
        """
        self._warm, self._most, self._validation, self._tunes = warm_epochs, seconds, validation_seconds, tunes
        self._every = 1
        self.held: _Held | None = None
        self._window: tuple[float, float] | None = None
        self._first_end: float | None = None
        self._unsettled = False
        self._records: list[dict[str, Any]] = []
        self._stretches: list[tuple[float, float]] = []
        self.feed: dict[str, Any] = {}
        self.feed_reasons: dict[str, str] = {}

    def on_start(self, trainer: Trainer) -> None:  # noqa: ARG002
        if not self._warm:
            self._window = (time.monotonic(), time.monotonic())

    def on_epoch_end(self, trainer: Trainer, record: dict[str, Any]) -> None:
        now = time.monotonic()
        self._every = trainer.config.eval_interval
        if self.held is not None:
            self.held.let_go()
        if self._window is None:
            if self._is_ready(trainer, now):
                self._window = (now, now)
                forget_peak()
            return
        self._records.append(record)
        # Not the record's own seconds: what lies between two epochs counts, too.
        self._stretches.append((self._window[1], now - record.get("val_seconds", 0.0)))
        self._window = (self._window[0], now)
        if self._most is not None and now - self._window[0] >= self._most:
            trainer.stop()
        self.feed, self.feed_reasons = told_by(trainer._training.source)

    def _is_ready(self, trainer: Trainer, now: float) -> bool:
        """Whether everything is chosen; what takes too long is ended, and has one more epoch to come to rest."""
        self._first_end = now if self._first_end is None else self._first_end
        if self._unsettled or is_settled(trainer, tunes=self._tunes):
            return True
        if now - self._first_end >= _SETTLE_SECONDS:
            self._unsettled = True
            look_no_further(trainer)
        return False

    def note(self, answer: Answer) -> None:
        if self._window is None or not self._records:
            answer.note = "one epoch only: no epoch without trials and compiling in it"
            return
        if self._unsettled:
            add_note(answer, UNSETTLED)
        samples = sum(record["samples"] for record in self._records)
        training = sum(ended - began for began, ended in self._stretches)
        answer.window, answer.seconds = self._window, self._window[1] - self._window[0]
        answer.stretches = self._stretches
        answer.samples_per_second = samples / training
        had = [record["val_seconds"] for record in self._records if "val_seconds" in record]
        each = fmean(had) if had else self._validation
        due = len(self._records) / self._every
        answer.overall_per_second = samples / (answer.seconds - sum(had) + due * each)
        answer.wait_share = sum(r["wait_share"] * r["seconds"] for r in self._records) / training
        answer.setup_seconds = since_start(self._window[0])


def told_by(source: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A feed's figures, and why it has the settings that it has."""
    figures = source.stats() if hasattr(source, "stats") else {}
    names = {"workers": "decision", "gpu_share": "share_decision", "cache": "cache_decision", "hosting": "hosting"}
    decisions = {name: getattr(source, attribute, None) for name, attribute in names.items()}
    return (
        {key: value for key, value in figures.items() if isinstance(value, int | float | str)},
        {f"feed: {name}": decision.reason for name, decision in decisions.items() if decision is not None},
    )


def is_settled(trainer: Trainer, *, tunes: bool) -> bool:
    """Whether the feed that trains it has found its settings; those that look for none have."""
    source: Any = trainer._training.source
    if hasattr(source, "is_settled"):
        return bool(source.is_settled)
    return not (tunes and hasattr(source, "hosting")) or getattr(source, "decision", None) is not None


def look_no_further(trainer: Trainer) -> None:
    """The feed goes on with the best that it has tried, or with what it began with."""
    source: Any = trainer._training.source
    if hasattr(source, "settle"):
        source.settle()
    elif getattr(source, "hosting", None) is not None:
        source.resize(source.hosting.value.workers)


def limit(trainer: Trainer, batch: tuple[Any, ...], *, seconds: float) -> float:
    """Samples a second of the very step that has trained, with its batch on the device already."""
    step, samples = trainer.stepper.train_step, len(batch[0])
    settle = settling()

    def burst(least_seconds: float) -> float:
        settle()
        began, count = time.perf_counter(), 0
        while count < _LIMIT_STEPS or time.perf_counter() - began < least_seconds:
            step(*batch)
            count += 1
        settle()
        return count * samples / (time.perf_counter() - began)

    trainer.model.train()
    burst(0.0)
    return median(burst(seconds / _LIMIT_ROUNDS) for _ in range(_LIMIT_ROUNDS))
