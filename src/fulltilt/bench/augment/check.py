"""That what is timed is right: the same module, poisoned outputs, against the torch path on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fulltilt.augment import GPUAugmentation, Ragged
from fulltilt.bench.augment.figures import Check
from fulltilt.bench.augment.task import CLASSES

_SAMPLES = 2
_EPOCH = 7
"""Not one that the timing uses: the comparison must not depend on what ran before."""


def check_call(module: GPUAugmentation, images: Any, masks: Any) -> Check:
    """Augment the whole batch once more and compare its first samples; both sides count their samples from 0."""
    for _ in range(2):  # the first call compiles; later ones may be launched another way, and those are timed
        module(images) if masks is None else module(images, masks)
    twin = copy.deepcopy(module).cpu()
    module.set_epoch(_EPOCH)
    twin.set_epoch(_EPOCH)
    with poisoned():
        out, labels = _pair(module(images) if masks is None else module(images, masks))
    first = _first(images)
    with torch.no_grad():
        wanted, wanted_labels = _pair(twin(first) if masks is None else twin(first, _first(masks)))
    std = 1.0 if module.settings.mean_std is None else min(module.settings.mean_std[1])
    return compare(out, labels, wanted, wanted_labels, step=1 / 255 / std)


def compare(out: Tensor, labels: Tensor | None, wanted: Tensor, wanted_labels: Tensor | None, *, step: float) -> Check:
    """`step` is what 1/255 comes to after normalisation; a float type's own rounding is allowed on top."""
    rounding = torch.finfo(out.dtype).eps if out.dtype.is_floating_point else 0.0
    mine, theirs = out[: len(wanted)].cpu().float(), wanted.float()
    worst = ((mine - theirs).abs() / (step + rounding * theirs.abs())).nan_to_num(float("inf"), float("inf")).max()
    unwritten = int(out.isnan().sum())
    wrong = None
    if labels is not None and wanted_labels is not None:
        unwritten += int((labels >= CLASSES).sum())
        wrong = float((labels[: len(wanted_labels)].cpu() != wanted_labels).float().mean())
    return Check(samples=len(wanted), worst=float(worst), wrong_labels=wrong, unwritten=unwritten)


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch hands out unwritten is NaN, or 255, in here."""
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def _pair(result: Any) -> tuple[Tensor, Tensor | None]:
    return result if isinstance(result, tuple) else (result, None)


def _first(batch: Tensor | Ragged | Sequence[Tensor]) -> Tensor | list[Tensor]:
    if isinstance(batch, Tensor):
        return batch[:_SAMPLES].cpu()
    if not isinstance(batch, Ragged):
        return [image.cpu() for image in batch[:_SAMPLES]]
    images = []
    for start, (height, width) in zip(batch.offsets[:_SAMPLES].tolist(), batch.sizes[:_SAMPLES].tolist(), strict=True):
        flat = batch.data[start : start + height * width * batch.channels].cpu()
        images.append(flat.view(height, width, batch.channels))
    return images
