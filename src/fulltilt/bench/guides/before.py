"""*before*: the plain loop with the settings that the guide found. How far it gets is how far all others train."""

from __future__ import annotations

from statistics import fmean
from typing import Any
from unittest.mock import patch

from fulltilt.bench.guides.meter import Meter, Metered, TimeUpError
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.bench.guides.setting import (
    PATIENCE,
    STOPPED,
    Rhythm,
    add_note,
    before_config,
    comes_in_bursts,
    counting,
    meter_for,
    note_meter,
    recipe_of,
    with_training,
)
from fulltilt.recipes import plain
from fulltilt.train.config.config import Config

_PROBE_SHARE = 0.2
_USED = 0.75
"""Of the time, for steps: a first epoch is faster than the rest."""
_LEAST_STEPS = 96
"""With fewer a metric says nothing yet (and with more, a training of ours would begin with trials),"""
_LONGER = 4
"""unless they take longer than this many times the time there is;"""
_FEWEST_STEPS = 12
"""and with fewer than these there is no rate."""
_EPOCHS = 2
"""Where only whole epochs tell: one to warm up, one that is measured."""


def run(order: Order, answer: Answer) -> None:
    config = with_training(before_config(order), output=order.folder)
    batch_size = config.data.batch_size
    assert isinstance(batch_size, int), "a plain loop has a number"
    answer.batch_size = batch_size
    loader = plain.loaders(config)[0]
    most = len(loader) * config.training.epochs
    rhythm = Rhythm(every_steps=len(loader) * config.training.eval_interval)
    bursts = comes_in_bursts(loader)
    if bursts:
        steps, seconds = min(most, _EPOCHS * len(loader)), order.seconds
    else:
        probe = meter_for(_PROBE_SHARE * order.seconds, warm=3)
        done = _train(config, probe)
        if done is not None:  # all of it took less than a look
            _note(order, answer, probe, rhythm, done, done.steps)
            return
        rate = probe.steps / max(probe.training_seconds, 1e-9)
        steps = min(most, steps_in(order.seconds, rate))
        seconds = max(order.seconds, steps / rate)
    meter = meter_for(PATIENCE * seconds, warm=2, whole=bursts)
    with counting(lambda: note_meter(answer, meter, rhythm)):
        done = _train(with_training(config, max_steps=steps), meter)
    _note(order, answer, meter, rhythm, done, steps)


def steps_in(seconds: float, rate: float) -> int:
    """As many as fit, or as a metric needs where they don't take much longer."""
    fit = _USED * seconds * rate
    return max(_FEWEST_STEPS, round(max(fit, min(_LEAST_STEPS, _LONGER * fit))))


def _train(config: Config, meter: Meter) -> plain.PlainHistory | None:
    """What came of it, unless the meter has stopped it."""
    make = plain.loaders

    def metered(config: Config, **options: Any) -> tuple[Any, Any]:
        train, val = make(config, **options)
        return Metered(train, meter), val

    try:
        with patch.object(plain, "loaders", metered):  # the loop itself stays as it is
            return plain.train_plainly(config)
    except TimeUpError:
        return None


def _note(
    order: Order, answer: Answer, meter: Meter, rhythm: Rhythm, done: plain.PlainHistory | None, steps: int
) -> None:
    meter.finish()
    if meter.between:
        rhythm.seconds = fmean(meter.between)
    note_meter(answer, meter, rhythm)
    answer.steps = steps
    if done is None:
        add_note(answer, STOPPED)
    else:
        answer.metric = done.last.get(recipe_of(order).metric)
