"""`data.batch_size: auto` of a configuration: the size that suits the model and the data which it names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fulltilt.errors import InputError
from fulltilt.feed.structure import samples_in
from fulltilt.machine.ranks import grouped, told_world
from fulltilt.nested import map_tensors
from fulltilt.train.augmenting import for_training
from fulltilt.train.build import make_loss, make_model, make_optimizer
from fulltilt.train.config.config import Config
from fulltilt.train.config.data import make_feeds
from fulltilt.train.config.references import is_reference
from fulltilt.train.sources import batches
from fulltilt.train.step.device import device_for
from fulltilt.train.unpacking import Unpacking
from fulltilt.tune.batch_size import get_optimal_batch_size
from fulltilt.tune.keeping import Switches

MIN_BATCH, MAX_BATCH, STEP = 32, 512, 32
_FEW = 7
"""Samples that are looked at. Hardly anyone's own batch size: a source that gives batches of its own shows."""


def settle_batch_size(config: Config) -> Config:
    """The configuration with a number for `data.batch_size: auto`; any other is returned as it is.

    A few samples go through the configuration's own feed and augmentation, and are repeated to make batches of any
    size. Sizes are 32, 64, … 512, and no more than there are samples. Random numbers are as before.
    """
    if config.data.batch_size != "auto":
        return config
    if told_world() > 1 and not grouped():
        raise InputError(
            "data.batch_size: 'auto' needs torch.distributed under torchrun, or each process would choose for itself: "
            "initialise it first, or give a number"
        )
    switches = Switches(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        size = _found(config)
    finally:
        switches.put_back()
    return config.model_copy(update={"data": config.data.model_copy(update={"batch_size": size})})


def _found(config: Config) -> int:
    training = config.training
    model = make_model(config)
    device = device_for(model, training.device)
    unpacking = Unpacking(model)
    batch, samples = _look(config, device, unpacking)
    most = MAX_BATCH if samples is None else min(MAX_BATCH, samples)
    averages = sum(p.numel() * p.element_size() for p in model.parameters()) if training.ema_decay else 0
    size = get_optimal_batch_size(
        lambda: model,  # nobody else's, so no copy of it has to be kept
        lambda count: _repeated(batch, count),
        min(MIN_BATCH, most),
        most,
        STEP,
        optimizer=make_optimizer(model, training),
        loss=make_loss(training),
        device=device,
        target=unpacking.place,
        precision="fp32" if training.use_amp is False else training.precision,
        reserve_bytes=averages,
    )
    return int(size)


def _look(config: Config, device: torch.device, unpacking: Unpacking) -> tuple[tuple[Any, ...], int | None]:
    """A batch of a few samples as training would have it, and how many there are at least, where that is known."""
    few = {"batch_size": _FEW, "num_workers": 0, "drop_last": False, "val_source": None, "val_masks": None}
    data = config.data.model_copy(update=few)
    source, held_out, augmentation = make_feeds(config.model_copy(update={"data": data}), device)
    try:
        augment = for_training(augmentation, source, on=config.training.use_gpu_augmentation is not False)
        if augment is not None:
            augment.begin(0)
        batch = next(iter(source), None)
        if batch is None:
            raise InputError(f"data.source: {data.source} yields nothing")
        prepare = unpacking.prepared(batch, augment, name="data.source")
        batch = batch if prepare is None else prepare(batch)
        found, count = samples_in(batch), batches(source)
        if found != _FEW and count != 1 and is_reference(str(data.source)):
            raise InputError(
                f"data.batch_size: 'auto' needs samples to make batches of, but {data.source} gives batches of {found} "
                "itself: have it return a data set, or give a number"
            )
        # Cloned: a feed uses its memory again.
        return map_tensors(Tensor.clone, tuple(batch)), None if count is None else max(found, (count - 1) * _FEW + 1)
    finally:
        source.close()
        if held_out is not None:
            held_out.close()


def _repeated(batch: tuple[Any, ...], count: int) -> Any:
    """`count` samples, the same few again and again; what has no sample dimension stays."""
    found = samples_in(batch)

    def repeat(tensor: Tensor) -> Tensor:
        if not tensor.dim() or len(tensor) != found:
            return tensor
        return tensor.repeat(-(-count // found), *[1] * (tensor.dim() - 1))[:count]

    return map_tensors(repeat, batch)
