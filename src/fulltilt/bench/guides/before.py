"""*before*: the plain loop with the settings that the guide found. How far it gets is how far all others train."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from fulltilt.bench.guides.meter import Meter, Metered, TimeUpError
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    PATIENCE,
    STOPPED,
    add_note,
    before_config,
    counting,
    meter_for,
    note_meter,
    recipe_of,
    with_training,
)
from fulltilt.recipes import plain
from fulltilt.train.config import Config

_PROBE_SHARE = 0.2
_USED = 0.75
"""Of the time, for steps: validation and checkpoints take some, and a first epoch is faster than the rest."""
_LEAST_STEPS = 12


def run(order: Order, answer: Answer) -> None:
    config = with_training(before_config(order), output=order.folder)
    batch_size = config.data.batch_size
    assert isinstance(batch_size, int), "a plain loop has a number"
    answer.batch_size = batch_size
    probe = meter_for(_PROBE_SHARE * order.seconds, warm=3)
    whole, done = _train(config, probe)
    if done is not None:  # all of it took less than a look
        _note(order, answer, probe, done, done.steps)
        return
    rate = probe.steps / max(probe.training_seconds, 1e-9)
    steps = max(1, min(whole, max(_LEAST_STEPS, round(_USED * order.seconds * rate))))
    meter = meter_for(PATIENCE * order.seconds, warm=2)
    with counting(answer, meter):
        _, done = _train(with_training(config, max_steps=steps), meter)
    _note(order, answer, meter, done, steps)


def _train(config: Config, meter: Meter) -> tuple[int, plain.PlainHistory | None]:
    """Steps of the whole training, and what came of it, unless the meter has stopped it."""
    lengths: list[int] = []
    make = plain.loaders

    def metered(config: Config, **options: Any) -> tuple[Any, Any]:
        train, val = make(config, **options)
        lengths.append(len(train))
        return Metered(train, meter), val

    try:
        with patch.object(plain, "loaders", metered):  # the loop itself stays as it is
            done = plain.train_plainly(config)
    except TimeUpError:
        done = None
    return lengths[0] * config.training.epochs, done


def _note(order: Order, answer: Answer, meter: Meter, done: plain.PlainHistory | None, steps: int) -> None:
    note_meter(answer, meter)
    answer.steps = steps
    if done is None:
        add_note(answer, STOPPED)
    else:
        answer.metric = done.last.get(recipe_of(order).metric)
