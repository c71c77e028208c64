"""The machine and the training on a diagnosis page, and the monitor's charts where a recording was made."""

from __future__ import annotations

from collections.abc import Sequence

from fulltilt import words
from fulltilt.machine.sample import Sample
from fulltilt.measure.observation import Loader, Observation
from fulltilt.monitor.summary import summarize

from .columns import Columns
from .cpu import cpu_card
from .gpu import gpu_card
from .markup import Markup, bound, tag
from .page import card


def machine_card(seen: Observation) -> Markup | None:
    facts = [*_training(seen), *(_loader(loader) for loader in seen.loaders), *_surroundings(seen)]
    if not facts:
        return None
    items = [part for name, value in facts for part in (tag("dt", name), tag("dd", bound(value)))]
    return card(tag("h2", "Training and machine"), tag("dl", *items, class_="facts"), label="Training and machine")


def _training(seen: Observation) -> list[tuple[str, str]]:
    training = seen.training
    if training is None:
        return []
    how = [training.dtype.removeprefix("torch.")]
    how += [f"autocast {training.autocast.removeprefix('torch.')}"] if training.autocast else []
    how += ["TF32"] if training.tf32 else []
    how += ["channels_last"] if training.channels_last else []
    how += ["compiled"] if training.compiled else []
    optimizer = training.optimizer + (" fused" if training.fused else " foreach" if training.foreach else "")
    if training.accumulation > 1:
        optimizer += f", a step for {training.accumulation} backwards"
    return [
        ("model", f"{training.model}, {training.parameters:,} parameters"),
        (
            "computes",
            f"on {training.device}: {', '.join(how)}; {words.many(training.threads, 'thread')}",
        ),
        ("optimizer", optimizer),
    ]


def _loader(loader: Loader) -> tuple[str, str]:
    words_ = [f"batches of {loader.batch_size}" if loader.batch_size else "batches of its own making"]
    words_.append(words.many(loader.num_workers, "worker") if loader.num_workers else "no workers")
    words_ += [f"prefetch {loader.prefetch_factor}"] if loader.prefetch_factor else []
    words_ += ["persistent"] if loader.persistent_workers else []
    words_ += ["pinned"] if loader.pin_memory else []
    samples = f", {loader.samples:,} samples" if loader.samples is not None else ""
    name = {"train": "loader", "eval": "evaluation's loader", "unknown": "another loader"}[loader.role]
    return name, f"{loader.dataset}{samples}: {', '.join(words_)}{f' ({loader.place})' if loader.place else ''}"


def _surroundings(seen: Observation) -> list[tuple[str, str]]:
    found = seen.surroundings
    if found is None:
        return []
    facts = [("processor", f"{found.cores} usable cores")]
    if found.cpu_share is not None:
        facts[0] = ("processor", f"{found.cores} usable cores, {words.percent(found.cpu_share)} busy")
    if found.gpu is not None:
        parts = [found.gpu]
        parts += [f"{words.percent(found.gpu_share)} busy"] if found.gpu_share is not None else []
        if found.gpu_memory_bytes is not None and found.gpu_memory_total_bytes is not None:
            used, total = map(words.memory_size, (found.gpu_memory_bytes, found.gpu_memory_total_bytes))
            parts.append(f"{used} of {total} used")
        facts.append(("GPU", ", ".join(parts)))
    if found.memory_bytes:
        facts.append(("memory", f"{words.memory_size(max(found.memory_bytes))} at most, of all its processes"))
    if found.shm_bytes is not None:
        facts.append(("/dev/shm", words.memory_size(found.shm_bytes)))
    return facts


def recording_cards(samples: Sequence[Sample]) -> list[Markup]:
    """What the monitor saw meanwhile."""
    summary = summarize(samples)
    columns = Columns(samples, len(summary.gpus))
    cpu = cpu_card(summary.cpu, summary.process, columns)
    return [*(gpu_card(gpu, columns) for gpu in summary.gpus), *([cpu] if cpu is not None else [])]
