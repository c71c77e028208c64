"""From what a process noted while it was watched to an Observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from fulltilt.launch.apply.as_bytes import tail_names
from fulltilt.launch.apply.augment import moved_by
from fulltilt.launch.watch import stages
from fulltilt.launch.watch.batches import length
from fulltilt.launch.watch.held import generator, open_file
from fulltilt.launch.watch.places import Spot, place, users_modules
from fulltilt.launch.watch.transforms import datasets, names
from fulltilt.launch.watch.waits import STEPS
from fulltilt.launch.watch.watch import LoaderSeen, Watch, is_compiled
from fulltilt.measure.observation import Copy, Loader, Observation, Phase, Step, Sync, Training
from fulltilt.measure.stable import warm_up
from fulltilt.measure.timeline import OTHER, PHASES, Record

IMAGE_DIMENSIONS = 4
FIRST_LOSSES = 200
LEAST_KEPT = 20
"""So many steps are kept, even if all of them were fed from what workers had ready."""


def observation(watch: Watch) -> Observation:
    job, timeline = watch.job, watch.timeline
    rank, world = watch.ranks
    if watch.sleeper:
        watch.dozing.wake(watch)
    rest = timeline.rest()
    now_ns = timeline.clock()
    if watch.gpu is not None:
        watch.gpu.finish()
    records = watch.records[: watch.closed]
    buffered = min(watch.buffered, len(records) - LEAST_KEPT)
    warm = max(watch.floor, buffered, warm_up([record.step_ns / 1e9 for record in records]))
    if len(records) - warm >= max(LEAST_KEPT, 2 * watch.round):
        warm += (len(records) - warm) % watch.round
    kept = records[warm:]
    began_ns = timeline.began_ns
    steps = tuple(_step(warm + number, record, began_ns) for number, record in enumerate(kept))
    outside = [sum(record.outside_ns[phase] for record in kept) for phase in range(len(PHASES))]
    if kept:  # an evaluation behind the last step is watched too; what else a script does at its end is not
        outside = [spent + rest.outside_ns[phase] for phase, spent in enumerate(outside)]
    inside = [sum(record.phases_ns[phase] for record in kept) for phase in range(len(PHASES))]
    total = sum(inside) + sum(outside)
    notes = list(watch.notes)
    if watch.stepped_elsewhere and not watch.records:
        notes.append("it trains in a thread of its own, and only the main thread is watched")
    if watch.left_out:
        notes.append(f"{watch.left_out} later steps were counted, but not kept one by one")
    if watch.dozing.passed_by:
        passed = watch.dozing.passed_by
        left = watch.steps - watch.left_out - len(kept)
        first = f"; the first {left} of those watched are warm-up, and in no figure" if left else ""
        notes.append(f"steps are short: {watch.steps} were watched, in bursts, and {passed} passed by{first}")
    return Observation(
        command=tuple(job.command),
        mode=job.mode,  # type: ignore[arg-type]
        applied=job.settings,
        ended=watch.ended or "script",  # type: ignore[arg-type]
        seconds=(now_ns - began_ns) / 1e9,
        steps=steps,
        first_losses=_first_losses(records[: watch.dozing.first_burst]),
        first_inputs=tuple((float(mean), float(spread)) for mean, spread in watch.inputs or ()),
        draws=watch.draws,
        warm_up_seconds=(kept[0].began_ns - began_ns) / 1e9 if kept else None,
        outside={PHASES[phase]: spent / 1e9 for phase, spent in enumerate(outside) if spent},
        attributed=1 - (inside[OTHER] + outside[OTHER]) / total if total else None,
        loaders=tuple(_loader(seen, seen.facts, Path(job.out)) for seen in watch.loaders if seen.facts is not None),
        syncs=tuple(
            Sync(place=place(at), kind=kind, count=count, seconds=spent / 1e9)
            for (at, kind), (count, spent) in watch.syncs.items()
        )
        + tuple(
            Sync(
                place=place(at),
                kind=kind,
                count=round(count * len(kept) / STEPS),
                seconds=spent / 1e9 * len(kept) / STEPS,
                implicit=True,
            )
            for (at, kind), (count, spent) in watch.heard.items()
        ),
        copies=tuple(
            Copy(place=place(at), count=count, seconds=spent / 1e9, bytes=size, pinned=bool(pinned), non_blocking=free)
            for (at, free), (count, spent, size, pinned) in watch.copies.items()
        ),
        training=training(watch),
        backwards=watch.backwards + watch.grads,
        modules=users_modules(),
        rank=rank,
        world=world,
        notes=tuple(notes),
    )


def with_limits(as_is: Observation, watch: Watch) -> Observation:
    """And what was measured behind it since."""
    timeline, first = watch.timeline, watch.again
    if watch.gpu is not None:
        watch.gpu.finish()
    records = () if first is None else watch.records[first:]
    # Loaders that the script has made since stand behind those that were seen.
    described = (seen for seen in watch.loaders if seen.facts is not None)
    return replace(
        as_is,
        seconds=(timeline.clock() - timeline.began_ns) / 1e9,
        again=tuple(_step(number, record, timeline.began_ns) for number, record in enumerate(records, first or 0)),
        loaders=tuple(
            replace(loader, samples_per_second=seen.samples_per_second)
            for loader, seen in zip(as_is.loaders, described, strict=False)
        ),
    )


def nothing_seen(watch: Watch, why: str) -> Observation:
    """Of a process that was watched in vain."""
    rank, world = watch.ranks
    return Observation(
        command=tuple(watch.job.command),
        mode=watch.job.mode,  # type: ignore[arg-type]
        applied=watch.job.settings,
        ended=watch.ended or "script",  # type: ignore[arg-type]
        seconds=(watch.timeline.clock() - watch.timeline.began_ns) / 1e9,
        rank=rank,
        world=world,
        notes=(*watch.notes, why),
    )


def _first_losses(records: list[Record]) -> tuple[float, ...]:
    """Up to the first step that has none."""
    losses = takewhile(bool, (record.losses for record in records[:FIRST_LOSSES]))
    return tuple(sum(float(loss) for loss in of_step) for of_step in losses)


def _step(number: int, record: Record, began_ns: int) -> Step:
    phases: dict[Phase, float] = {PHASES[phase]: spent / 1e9 for phase, spent in enumerate(record.phases_ns) if spent}
    return Step(
        number=number,
        started=(record.began_ns - began_ns) / 1e9,
        seconds=sum(phases.values()),
        phases=phases,
        gpu_seconds=record.gpu_seconds,
        starved_seconds=record.starved_seconds,
        samples=record.samples,
        loss=sum(float(loss) for loss in record.losses) if record.losses else None,
    )


def described(loader: Any, made: Spot | None) -> Loader:
    """What a loader itself says, before it is watched."""
    from torch.utils.data import IterableDataset

    return Loader(
        role="unknown",
        place=place(made),
        dataset=type(loader.dataset).__name__,
        samples=None,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        batch_bytes=None,
        iterable=isinstance(loader.dataset, IterableDataset),
    )


def with_data(facts: Loader, loader: Any, *, tell: Callable[[str], None]) -> Loader:
    """And what its data set does, whose own code is asked for it."""
    from torch.utils.data import TensorDataset

    dataset = loader.dataset
    *_, inner = datasets(dataset)
    chain = moved_by(loader)
    return replace(
        facts,
        dataset=type(inner).__name__,
        samples=length(dataset, tell=tell),
        opened=open_file(dataset) if loader.num_workers <= 1 else None,
        generator=generator(dataset) if not loader.num_workers else None,
        in_memory=isinstance(inner, TensorDataset),
        transforms=names(dataset),
        movable=() if chain is None else chain.names,
        augmentation=None if chain is None else chain.by_hand(),
        tail=tail_names(loader),
    )


def _loader(seen: LoaderSeen, facts: Loader, out: Path) -> Loader:
    parts = stages.read(out, str(seen.number))
    making = math.fsum(part.seconds for part in parts) * (facts.batch_size or 1)
    return replace(
        facts,
        role=seen.role,  # type: ignore[arg-type]
        made=seen.times_made,
        batch_bytes=seen.batch_bytes,
        starts=seen.starts,
        changes=seen.changes,
        elsewhere=seen.elsewhere and seen.role == "unknown",
        start_seconds=start_seconds(seen.waits_ns, live_on=facts.persistent_workers, making=making),
        samples_per_second=seen.samples_per_second,
        stages=parts,
        draws=stages.draws(out, str(seen.number)),
        remembers=stages.remembers(out, str(seen.number)),
    )


def start_seconds(waits_ns: Sequence[int], *, live_on: bool, making: float) -> float | None:
    """What an epoch's first batch is waited for, usually.

    Workers that live on are started once: the first epoch's wait is none that comes back. Where no other one was seen,
    the next will be waited for as long as a worker needs to make a batch, `making` seconds.
    """
    if not waits_ns:
        return None
    if not live_on:
        return median(waits_ns) / 1e9
    return median(waits_ns[1:]) / 1e9 if len(waits_ns) > 1 else min(waits_ns[0] / 1e9, making or math.inf)


def training(watch: Watch) -> Training | None:
    """What is trained, and how; None where nothing was."""
    import torch

    model, optimizer = watch.model, watch.optimizer
    if model is None or optimizer is None:
        return None
    parameters = list(model.parameters())
    widest = max((parameter for parameter in parameters), key=lambda one: one.numel(), default=None)
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    shape: tuple[int, ...] = watch.input_shape
    weights_last = any(
        conv.weight.is_contiguous(memory_format=torch.channels_last) and not conv.weight.is_contiguous()
        for conv in convolutions
    )
    inner = getattr(model, "_orig_mod", model)
    inner = getattr(inner, "module", inner)
    launched = watch.launched
    return Training(
        model=type(inner).__name__,
        parameters=sum(parameter.numel() for parameter in parameters),
        weights=sum(parameter.requires_grad for parameter in parameters),
        dtype=str(widest.dtype).removeprefix("torch.") if widest is not None else "none",
        device=str(widest.device) if widest is not None else "cpu",
        images=bool(convolutions) and len(shape) == IMAGE_DIMENSIONS,
        channels_last=weights_last or (bool(convolutions) and watch.input_last and shape[1] > 1),
        compiled=is_compiled(model),
        autocast=watch.autocast,
        # By its newer name, which knows what was set by the older ones; those fail where the newer was used.
        tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        optimizer=type(optimizer).__name__,
        fused=bool(optimizer.defaults.get("fused")),
        foreach=_foreach(optimizer, parameters),
        accumulation=max(1, round(watch.backwards / watch.steps)) if watch.steps else 1,
        launches=None if launched is None else launched.count,
        kernel_seconds=None if launched is None or launched.graphs else launched.kernel_seconds,
        fusable_seconds=None if launched is None or launched.graphs else launched.fusable_seconds,
        threads=torch.get_num_threads(),
    )


def _foreach(optimizer: Any, parameters: list[Any]) -> bool:
    """As torch chooses when it is not told: on the GPU, where nothing else was asked for."""
    asked = optimizer.defaults.get("foreach")
    if asked is not None:
        return bool(asked)
    return not optimizer.defaults.get("fused") and any(parameter.is_cuda for parameter in parameters)
