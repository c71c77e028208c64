"""A trainer that is not ours: what it begins with, and what is measured of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from fulltilt.bench.guides.meter import Meter, TimeUpError
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    STOPPED,
    TUNED,
    UNTUNED,
    Rhythm,
    add_note,
    before_config,
    comes_in_bursts,
    counting,
    meter_for,
    note_meter,
    patience,
    recipe_of,
    steps_for,
    tuned_config,
    tuned_loading,
)
from fulltilt.recipes import plain
from fulltilt.train.config.config import Config
from fulltilt.train.seeding import seed_everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What a trainer that is not ours begins with."""

    config: Config
    loading: dict[str, Any]
    """Options of its DataLoaders, beyond what the configuration says."""
    tuned: bool
    """By hand; otherwise it has its defaults."""
    fast: bool
    """Tuned for a GPU that is there: bf16, channels last, compiled."""


def peer_for(order: Order, answer: Answer) -> Peer:
    """Its settings, on both sides the same; seeds and switches of torch are set."""
    tuned, gpu = order.contestant.endswith("_tuned"), torch.cuda.is_available()
    config = tuned_config(order) if tuned else before_config(order)
    if config.training.seed is not None:
        seed_everything(config.training.seed)
    if tuned:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        add_note(answer, TUNED if gpu else UNTUNED)
    size = config.data.batch_size
    assert isinstance(size, int), "a DataLoader has a number"
    answer.batch_size = size
    return Peer(config=config, loading=tuned_loading() if tuned else {}, tuned=tuned, fast=tuned and gpu)


class PeerLoop(ABC):
    """Its training, as its own documentation writes it."""

    def __init__(self, peer: Peer, order: Order) -> None:
        self.peer = peer
        self.train_loader, self.val_loader = plain.loaders(peer.config, **peer.loading)
        self.per_epoch = len(self.train_loader)
        self.bursts = comes_in_bursts(self.train_loader)
        training = peer.config.training
        self.rhythm = Rhythm(every_steps=self.per_epoch * training.eval_interval)
        size = peer.config.data.batch_size
        assert isinstance(size, int), "a DataLoader has a number"
        self.steps = steps_for(order, size, most=self.per_epoch * training.epochs)
        self.training = training.model_copy(update={"max_steps": self.steps})

    @abstractmethod
    def train(self, meter: Meter) -> None:
        """As many steps as there are to be, or until the meter ends it."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """The figures of a validation; none where nothing validates."""

    def renew(self) -> None:
        """On without an end, with new workers: those before had filled their queues while the model was compiled."""
        self.train_loader, self.val_loader = plain.loaders(self.peer.config, **self.peer.loading)


def measure_peer(loop: PeerLoop, order: Order, answer: Answer) -> None:
    """The metric after as many samples as *before* has seen; then, where compiling was in them, the rate once more."""
    whole = loop.bursts and loop.steps >= 2 * loop.per_epoch
    counts = whole or not loop.peer.tuned  # else workers fill their queues while it is compiled: too good a rate
    meter = meter_for(patience(order), steps=loop.steps, whole=whole)

    def note() -> None:
        note_meter(answer, meter, loop.rhythm)

    try:
        with counting(note) if counts else nullcontext():
            loop.train(meter)
        meter.finish()
        with loop.rhythm.timed():
            answer.metric, answer.steps = loop.validate().get(recipe_of(order).metric), loop.steps
    except TimeUpError:
        add_note(answer, STOPPED)
    if counts:
        note()
        return
    answer.write(order.answer)
    meter = meter_for(order.seconds, whole=loop.bursts)
    loop.renew()
    with suppress(TimeUpError), counting(note):
        loop.train(meter)
    note()
