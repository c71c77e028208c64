"""`get_optimal_batch_size`: the batch size that trains fastest without taking more memory than that needs."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from fulltilt.errors import InputError, UnavailableError, first_line
from fulltilt.train.ranks.ranks import Ranks
from fulltilt.train.step.choose import Settings
from fulltilt.train.step.device import check_optimizers, device_for
from fulltilt.train.step.engine import Engine
from fulltilt.train.step.precision import formats_for
from fulltilt.train.step.roles import Loss, Objective
from fulltilt.tune.bench import Bench, MakeBatch
from fulltilt.tune.keeping import Kept, Switches
from fulltilt.tune.memory import gauge_for
from fulltilt.tune.policy import Sizes, Trial, check_safety, search
from fulltilt.tune.result import BatchSize
from fulltilt.tune.showing import Bar

log = logging.getLogger("fulltilt.tune")

Optimizers = Optimizer | Sequence[Optimizer] | Callable[[Any], Optimizer]


def get_optimal_batch_size(
    model_or_factory: nn.Module | Callable[[], nn.Module],
    make_batch: MakeBatch,
    min_batch: int = 64,
    max_batch: int = 512,
    step: int = 32,
    *,
    optimizer: Optimizers | None = None,
    loss: Loss | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    target: int | Literal["auto"] = "auto",
    safety: float = 0.9,
    memory_bytes: int | None = None,
    reserve_bytes: int = 0,
    show: bool = True,
) -> BatchSize:
    """The smallest batch size whose samples/s is within 3 % of the best, among those that fit in memory.

    A few sizes are run as whole steps (forward, backward, optimizer) in training mode. Memory is a line through them,
    which says up to where to try; pace decides. What is returned was run. Afterwards weights, buffers, gradients,
    optimizers and random numbers are as they were, bit for bit. Under torch.distributed all ranks return the same.

    Args:
        model_or_factory: the model, or what makes it; a model that a factory made is dropped afterwards.
        make_batch: called with a number of samples, returns a batch (*inputs, target) of as many, on any device.
        min_batch, max_batch, step: sizes to choose from: min_batch, min_batch + step, … up to max_batch.
        optimizer: one, several, or what makes one of parameters (torch.optim.SGD); None: AdamW, which takes as much
            memory as any.
        loss: called as `loss(outputs, target)`; None: as HybridPrecisionTrainer chooses it.
        precision: as HybridPrecisionTrainer has it; "auto" is bf16 on GPUs that have it, fp16 on those that have
            only that, else fp32.
        target: which of the batch's values is the target, as HybridPrecisionTrainer has it.
        safety: share of the memory that steps may take.
        memory_bytes: what the process may use of the device's memory (RAM on the CPU); None: what is free, and what
            it has already.
        reserve_bytes: what training will take beside its step, such as averaged weights; held while sizes are tried.
        show: print the table on stderr when done; on a terminal, a bar after two seconds.
    """
    sizes = Sizes(min_batch=min_batch, max_batch=max_batch, step=step)
    check_safety(safety)
    if memory_bytes is not None and memory_bytes <= 0:
        raise InputError(f"memory_bytes={memory_bytes} must be above 0, or None for what is free")
    if reserve_bytes < 0:
        raise InputError(f"reserve_bytes={reserve_bytes} must be at least 0")
    with ExitStack() as afterwards:
        afterwards.callback(Switches(_guessed(device)).put_back)  # before a factory draws its weights
        model, theirs = _model(model_or_factory)
        if not callable(make_batch):
            raise InputError(f"make_batch must be callable as make_batch(samples), found {type(make_batch).__name__}")
        where = device_for(model, device)
        afterwards.callback(Switches(where).put_back)
        optimizers = _optimizers(optimizer, model)
        check_optimizers(optimizers, model, loss)
        formats = formats_for(precision, where, (parameter.dtype for parameter in model.parameters()))
        kept = Kept([part for part in (model if theirs else None, loss) if isinstance(part, nn.Module)], optimizers)
        afterwards.callback(kept.put_back)
        kept.lend(where)
        engine = Engine(model.to(where), optimizers, Objective(loss), where, clip_norm=None, ema=None)
        engine.use(Settings(precision=formats.allowed[0], cudnn_benchmark=torch.backends.cudnn.benchmark))
        # fp16's scaler begins by skipping steps that overflow, and a step that is skipped makes no optimizer state.
        engine.scaler = None
        model.train()
        reserved = _held(reserve_bytes, engine)
        bar = Bar(_expected(sizes), shown=show and Ranks(where).rank == 0)
        afterwards.callback(bar.close)
        bench = Bench(
            engine, make_batch, gauge_for(where), target=target, memory_bytes=memory_bytes,
            asked_from=min_batch, tick=bar.tick,
        )  # fmt: skip
        found = _searched(sizes, safety, bench, bar)
        del reserved
    log.info("batch size: %d (%s)", found, found.reason)
    if show and bench.ranks.rank == 0:
        print(found.table(), file=sys.stderr, flush=True)
    return found


def _searched(sizes: Sizes, safety: float, bench: Bench, bar: Bar) -> BatchSize:
    policy = search(sizes, safety=safety, held_bytes=bench.held_bytes())
    trials: list[Trial] = []
    size = next(policy)
    while True:
        bar.trying(size)
        trials.append(bench.run(size))
        bar.tried()
        log.debug("tried %s", trials[-1])
        try:
            size = policy.send(trials[-1])
        except StopIteration as done:
            return BatchSize.of(done.value, trials)


def _guessed(device: str | torch.device) -> torch.device:
    """Where a factory may draw random numbers; the model, which says where it trains, is not there yet."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if str(device).partition(":")[0] == "cuda" and torch.cuda.is_available():
        return torch.device(device)
    return torch.device("cpu")


def _model(given: nn.Module | Callable[[], nn.Module]) -> tuple[nn.Module, bool]:
    """The module to run, and whether it is the caller's own."""
    theirs = isinstance(given, nn.Module)
    model: Any = given if theirs else given() if callable(given) else None
    if not isinstance(model, nn.Module):
        found = type(given).__name__ if model is None else f"a factory of {type(model).__name__}"
        raise InputError(f"model_or_factory is {found}; expected a torch.nn.Module or what returns one")
    if isinstance(
        model, nn.parallel.DistributedDataParallel
    ):  # alone: a rank out of memory would leave the others waiting
        model = model.module
    model = getattr(model, "_orig_mod", model)  # compiled, it would be compiled again for every size
    assert isinstance(model, nn.Module)
    sharded = torch.distributed.is_available() and any(hasattr(p, "placements") for p in model.parameters())
    if sharded:
        raise InputError("the model is sharded over several processes: look for the batch size before fully_shard()")
    return model, theirs


def _optimizers(given: Optimizers | None, model: nn.Module) -> list[Optimizer]:
    if given is None:
        given = torch.optim.AdamW
    if isinstance(given, Optimizer):
        return [given]
    if isinstance(given, Sequence):
        return list(given)
    if not callable(given):
        raise InputError(
            f"optimizer is {type(given).__name__}; expected a torch.optim.Optimizer, a list of them, or what makes one "
            "of parameters, such as torch.optim.SGD"
        )
    return [given([parameter for parameter in model.parameters() if parameter.requires_grad])]


def _held(reserve_bytes: int, engine: Engine) -> torch.Tensor | None:
    """Memory that training will have taken; with several ranks also the buckets that gradients are reduced in."""
    if Ranks(engine.device).several:
        trained = [parameter for parameter in engine.parameters if parameter.requires_grad]
        reserve_bytes += sum(parameter.numel() * parameter.element_size() for parameter in trained)
    if not reserve_bytes:
        return None
    try:  # written to: RAM that was never touched is not taken
        return torch.full((reserve_bytes,), 1, dtype=torch.uint8, device=engine.device)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise UnavailableError(
            f"{reserve_bytes} bytes that training needs beside its step can't be had: {first_line(error)}"
        ) from error


def _expected(sizes: Sizes) -> int:
    """Trials, more or less: doublings, and a few around the knee."""
    between = (sizes.largest - sizes.min_batch) // sizes.step + 1
    return min(between, math.ceil(math.log2(sizes.largest / sizes.min_batch)) + 3)
