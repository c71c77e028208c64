"""What every contestant needs before it can begin: its configuration, changed in places; its device; loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fulltilt.bench.guides.meter import Meter
from fulltilt.bench.guides.order import Answer, Order
from fulltilt.errors import InputError
from fulltilt.machine.cores import read_cores
from fulltilt.nested import map_tensors
from fulltilt.recipes.catalog import Recipe, recipe_named
from fulltilt.train.build import make_loss
from fulltilt.train.config.config import Config, TrainingConfig

WARM_STEPS = 10
"""Before a rate is measured, or a quarter of the training where that is less."""
PATIENCE = 3.0
"""Times what a contestant was given, before it is stopped without a metric."""
_AS_BEFORE = 1.5
"""Times what *before* took."""
TUNED, UNTUNED = "bf16, channels_last, compiled", "no GPU: fp32, not compiled"
STOPPED = "stopped by the clock, before its last validation"
_FEW_BATCHES = 4
"""Of a worker in an epoch."""
_FUSED = ("adamw", "adam", "sgd")
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def recipe_of(order: Order) -> Recipe:
    return recipe_named(order.recipe)


def with_training(config: Config, **values: Any) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


def before_config(order: Order) -> Config:
    """As the guide found it."""
    return recipe_of(order).config("before", order.overrides, small=order.small)


def tuned_config(order: Order) -> Config:
    """For a peer that is tuned by hand: the data as *before* reads them, everything else as *after* has it."""
    after = recipe_of(order).config("after", order.overrides, small=order.small)
    before = recipe_of(order).config("before", (*recipe_of(order).by_hand, *order.overrides), small=order.small)
    size = order.batch_size or after.data.batch_size
    if size == "auto":
        size = before.data.batch_size
    data = before.data.model_copy(update={"batch_size": size})
    training: dict[str, Any] = {}
    if torch.cuda.is_available() and after.training.optimizer in _FUSED:
        training["optimizer_args"] = {**after.training.optimizer_args, "fused": True}
    return with_training(after.model_copy(update={"data": data}), **training)


def tuned_loading() -> dict[str, Any]:
    """A DataLoader as everybody advises: a worker for each core, kept, ahead, pinned."""
    workers = read_cores().usable
    return {
        "num_workers": workers,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "pin_memory": torch.cuda.is_available(),
    }


def figures_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a validation came to, under the names that a history has; the metrics begin anew."""
    found = {f"val_{name}": float(metric.compute()) for name, metric in metrics.items()}
    for metric in metrics.values():
        metric.reset()
    return found


def add_note(answer: Answer, note: str) -> None:
    answer.note = note if answer.note is None else f"{answer.note}; {note}"


def steps_for(order: Order, batch_size: int, most: int) -> int:
    """As many as it takes to see the samples that *before* has seen; `most` is the whole training."""
    return most if order.samples is None else max(1, min(most, round(order.samples / batch_size)))


def patience(order: Order) -> float:
    """Seconds for as many samples as *before* has seen, after which a peer is stopped without a metric."""
    return max(PATIENCE * order.seconds, _AS_BEFORE * (order.before_took_seconds or 0.0))


def meter_for(seconds: float, *, steps: int | None = None, warm: int = WARM_STEPS, whole: bool = False) -> Meter:
    """
    Args:
        steps: of the training, where that is known.
        whole: only whole epochs tell (`comes_in_bursts`).
    """
    warm = warm if steps is None else min(warm, max(1, steps // 4))
    return Meter(warm=1 if whole else warm, seconds=seconds, whole=whole, settle=settling(), begin=forget_peak)


def comes_in_bursts(loader: DataLoader[Any]) -> bool:
    """Whether each worker makes only a few batches of an epoch: they come all at once, and then none for long.

    A stretch of such an epoch has any rate at all; the whole of it, with the start of its workers, has its own.
    """
    return len(loader) <= _FEW_BATCHES * loader.num_workers


def settling() -> Callable[[], None]:
    """Waits for the device, where there is one."""
    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def note_device(answer: Answer) -> None:
    """Which GPU, and how much of its memory torch held at most: what a CUDA graph works in is part of that, while it is
    allocated to nobody."""
    if torch.cuda.is_available():
        answer.gpu_uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", "")) or None
        answer.peak_memory_bytes = torch.cuda.max_memory_reserved()


def forget_peak() -> None:
    """Most of the memory from here on: not what looking for kernels, compiling and trials took."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def note_meter(answer: Answer, meter: Meter, rhythm: Rhythm) -> None:
    """What a metered loop came to, if it came to anything."""
    meter.finish()
    note_device(answer)
    if meter.samples_per_second is None:
        return  # what an earlier part has found stays
    answer.samples_per_second, answer.wait_share = meter.samples_per_second, meter.wait_share
    answer.overall_per_second = meter.overall_per_second(between_seconds=rhythm.seconds, every_steps=rhythm.every_steps)
    answer.stretches = meter.stretches
    answer.window = (meter.stretches[0][0], meter.stretches[-1][1])
    answer.seconds, answer.setup_seconds = answer.window[1] - answer.window[0], since_start(answer.window[0])


@dataclass(slots=True)
class Rhythm:
    """How often something comes between steps, and how long that takes."""

    every_steps: float
    seconds: float | None = None
    """Of a validation, with the checkpoint where there is one; None until it was seen."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A validation."""
        began = time.monotonic()
        yield
        self.seconds = time.monotonic() - began


@contextmanager
def counting(note: Callable[[], None]) -> Iterator[None]:
    """Should the process be asked to end meanwhile, what was measured until then counts."""
    try:
        yield
    except SystemExit:
        note()
        raise


def loss_of(training: TrainingConfig) -> Callable[..., Tensor]:
    found = make_loss(training)
    if found is None:
        raise InputError("training.loss: missing; a recipe names its loss")
    return found


def last_weights(model: nn.Module) -> None:
    """Weights of convolutions with their channels last, in two dimensions and in three."""
    for parameter in model.parameters():
        if parameter.dim() in _LAST:
            parameter.data = parameter.data.contiguous(memory_format=_LAST[parameter.dim()])


def last(part: Any) -> Any:
    """A batch of images, or of volumes, with its channels last; clips of bytes have them there already."""
    fits = isinstance(part, Tensor) and part.dim() in _LAST and part.is_floating_point()
    return part.contiguous(memory_format=_LAST[part.dim()]) if fits else part


def in_float(outputs: Any) -> Any:
    """bf16 is for the step, not for metrics."""
    return map_tensors(lambda part: part.float() if part.is_floating_point() else part, outputs)


def since_start(moment: float) -> float:
    """From the process's start to a moment of the monotonic clock."""
    return moment - (time.monotonic() - (time.time() - psutil.Process().create_time()))
