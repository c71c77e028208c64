"""A model made ready for several processes: each with a copy of it (DDP), or each with a part of it (FSDP2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from fulltilt.errors import InputError
from fulltilt.machine.decision import Decision
from fulltilt.machine.ranks import several
from fulltilt.train.config.config import TrainingConfig
from fulltilt.train.ranks.fsdp import is_sharded, shard
from fulltilt.train.step.choose import Auto
from fulltilt.train.step.device import device_for
from fulltilt.train.step.precision import formats_for
from fulltilt.train.step.step import HybridPrecisionTrainer

Parallel = Literal["ddp", "fsdp"]
_FULL = 0.8
"""Share of a device's memory that weights, gradients and optimizer may take before the model is split: activations need
the rest."""


def choose(wanted: str, *, needed_bytes: int, device_bytes: int | None) -> Decision[Parallel]:
    """A copy for each process, unless it would not fit: pure policy."""
    evidence: dict[str, Any] = {"needed_bytes": needed_bytes, "device_bytes": device_bytes}
    if wanted == "ddp":
        return Decision(value="ddp", reason="asked for", evidence=evidence)
    if wanted == "fsdp":
        return Decision(value="fsdp", reason="asked for", evidence=evidence)
    if device_bytes is None:
        return Decision(value="ddp", reason="on the CPU every process has the whole model", evidence=evidence)
    figures = f"{needed_bytes / 1e9:.1f} GB of weights, gradients and optimizer, {device_bytes / 1e9:.1f} GB of memory"
    if needed_bytes <= _FULL * device_bytes:
        return Decision(value="ddp", reason=f"{figures}: each process has the whole model", evidence=evidence)
    return Decision(value="fsdp", reason=f"{figures}: it is spread over the processes", evidence=evidence)


def bytes_needed(model: nn.Module, optimizers: Sequence[Optimizer], *, ema: bool) -> int:
    """Weights, gradients, what the optimizers will hold, and averaged weights."""
    total = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            held = _held_by(optimizer, group)
            total += sum(parameter.nbytes for parameter in group["params"]) * (2 + held + ema)
    return total + sum(buffer.nbytes for buffer in model.buffers())


def decide(
    wanted: str, model: nn.Module, optimizers: Sequence[Optimizer], device: torch.device, *, ema: bool
) -> Decision[Parallel]:
    """How a model is trained by several processes; all of them come to the same answer."""
    if is_sharded(model):
        return Decision(value="fsdp", reason="the model came sharded")
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    found = choose(wanted, needed_bytes=bytes_needed(model, optimizers, ema=ema), device_bytes=memory)
    told: list[Any] = [found.value]
    dist.broadcast_object_list(told, 0)  # GPUs may differ
    return found if told[0] == found.value else Decision(value=told[0], reason="rank 0's choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A model where it will be trained, and how."""

    model: nn.Module
    device: torch.device
    precision: str
    compile: bool | Auto
    channels_last: bool | Auto
    parallel: Decision[Parallel] | None = None
    """None: this process is alone."""
    wrapper: DistributedDataParallel | None = None
    """One that the model came in."""

    def wrap(self, stepper: HybridPrecisionTrainer) -> None:
        """Have gradients reduced, once the step has the model as it will stay."""
        if self.parallel is not None and self.parallel.value == "ddp":
            stepper.forward_model = self.wrapper or replicate(self.model, self.device)


def arrange(
    model: nn.Module, optimizers: Sequence[Optimizer], config: TrainingConfig, *, device: str | torch.device
) -> Arranged:
    """Before a step is made of it: on its device, and shared out where several processes train it."""
    wrapper = model if isinstance(model, DistributedDataParallel) else None
    model = model if wrapper is None else wrapper.module
    where = device_for(model, device)
    precision = "fp32" if config.use_amp is False else config.precision
    compile, layout = config.compile, config.channels_last
    if not several():
        return Arranged(model=model, device=where, precision=precision, compile=compile, channels_last=layout)
    found: Decision[Parallel] = Decision(value="ddp", reason="the model came wrapped")
    if wrapper is None:
        found = decide(config.parallel, model, optimizers, where, ema=config.ema_decay is not None)
    if config.sync_batchnorm:
        model = normalise_together(model, where)
    if found.value == "fsdp":
        # Gradient scaling looks at whole gradients.
        if precision == "fp16":
            raise InputError("precision fp16 can't be had with parallel: fsdp (gradient scaling); use bf16 or fp32")
        dtypes = (parameter.dtype for parameter in model.parameters())
        if precision == "auto" and "fp16" in formats_for(precision, where, dtypes).allowed:
            precision = "fp32"
        # Not tried there: both would change weights that are no longer in one piece.
        compile, layout = compile is True, layout is True
        if not is_sharded(model):
            shard(model, optimizers, where)
    elif layout == "auto":
        # Decided before the model is wrapped: gradients are sent in the layout that the weights have then.
        layout = where.type == "cuda" and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return Arranged(
        model=model,
        device=where,
        precision=precision,
        compile=compile,
        channels_last=layout,
        parallel=found,
        wrapper=wrapper,
    )


def normalise_together(model: nn.Module, device: torch.device) -> nn.Module:
    """Batch statistics over all processes' samples; weights stay the same objects."""
    if not several() or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return model
    if device.type != "cuda":
        raise InputError("sync_batchnorm: true needs GPUs; on the CPU each process has its own batch statistics")
    together: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return together


def replicate(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Gradients are averaged over the processes while they are computed; rank 0's weights and buffers are everybody's.

    Gradients live in the buffers that are sent, which saves a copy of them.
    """
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def _held_by(optimizer: Optimizer, group: dict[str, Any]) -> int:
    """Tensors of a weight's size that an optimizer keeps for it."""
    if isinstance(optimizer, SGD):
        return 1 if group["momentum"] else 0
    if isinstance(optimizer, Adam | AdamW):
        return 3 if group["amsgrad"] else 2
    return 1 if isinstance(optimizer, Adagrad) else 2
