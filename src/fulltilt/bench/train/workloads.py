"""What is trained: model, batch, and the steps that a person who knows how would write for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fulltilt.bench.feed.models import (
    CLASSES,
    GraphedStep,
    Step,
    UNet,
    resnet50,
    small_classifier,
    window_classifier,
)
from fulltilt.train import HybridPrecisionTrainer

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A contestant that is ready: its step, or what runs it, and what there is to say about it."""

    step: Callable[..., Any] | None = None
    burst: Callable[[float], float] | None = None
    """Runs for about so many seconds and gives those of a step: for what is more than a step."""
    notes: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


StepFactory = Callable[["Workload"], Running]
"""Makes a contestant for a workload. A whole loop, or one that writes checkpoints, is another of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and one batch of it, on the device already."""

    key: str
    title: str
    device: str
    make_model: Callable[[], nn.Module]
    batch: Batch
    classes: int
    epoch_steps: int
    """Steps of an epoch that takes some seconds."""
    by_hand: dict[str, StepFactory]
    """What ours is compared with: the fastest of these."""

    @property
    def samples(self) -> int:
        return len(self.batch[0])


def by_hand(*, half: bool, compiled: bool, graphed: bool) -> StepFactory:
    """The usual advice, followed: bf16, channels_last, fused optimizer, tuned convolutions, compiled, one graph."""

    def make(work: Workload) -> Running:
        if work.device != "cpu":
            torch.backends.cudnn.benchmark = True
            torch.backends.cudnn.allow_tf32 = True
            torch.set_float32_matmul_precision("high")
        step = Step(work.make_model(), work.device, half=half, compiled=compiled)
        return Running(step=GraphedStep(step, *work.batch) if graphed else step)

    return make


def ours(work: Workload) -> Running:
    """Everything left at "auto"."""
    model = work.make_model().to(work.device)
    trainer = HybridPrecisionTrainer(
        model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), device=work.device
    )
    for _ in range(2):  # the trials come before the second step
        trainer.train_step(*work.batch)
    plan = {name: {"value": decision.value, "reason": decision.reason} for name, decision in trainer.plan.items()}
    return Running(step=trainer.train_step, notes={"plan": plan})


def workloads(*, gpu: bool) -> dict[str, Callable[[], Workload]]:
    """Made when their turn comes: batches take memory."""
    return {"resnet50": _resnet if gpu else _classifier, "unet": _unet(gpu), "windows": _windows(gpu)}


_PLAIN: dict[str, StepFactory] = {"plain": by_hand(half=False, compiled=False, graphed=False)}
_LARGE: dict[str, StepFactory] = {
    "bf16, channels_last, compiled": by_hand(half=True, compiled=True, graphed=False),
    "… and one CUDA graph": by_hand(half=True, compiled=True, graphed=True),
}
_SMALL: dict[str, StepFactory] = {
    "one CUDA graph": by_hand(half=False, compiled=False, graphed=True),
    "compiled, one CUDA graph": by_hand(half=False, compiled=True, graphed=True),
    "bf16, compiled, one CUDA graph": by_hand(half=True, compiled=True, graphed=True),
}


def _resnet() -> Workload:
    return Workload(
        key="resnet50",
        title="ResNet-50, 224², batch 256",
        device="cuda",
        make_model=lambda: resnet50()[0],
        batch=_images((256, 3, 224, 224), (256,), CLASSES, "cuda"),
        classes=CLASSES,
        epoch_steps=50,
        by_hand=_LARGE,
    )


def _classifier() -> Workload:
    return Workload(
        key="resnet50",
        title="small classifier, 32², batch 8",
        device="cpu",
        make_model=small_classifier,
        batch=_images((8, 3, 32, 32), (8,), CLASSES, "cpu"),
        classes=CLASSES,
        epoch_steps=4,
        by_hand=_PLAIN,
    )


def _unet(gpu: bool) -> Callable[[], Workload]:
    device, side, count, base = ("cuda", 512, 32, 32) if gpu else ("cpu", 32, 2, 4)

    def make() -> Workload:
        return Workload(
            key="unet",
            title=f"U-Net, {side}², batch {count}",
            device=device,
            make_model=lambda: UNet(base),
            batch=_images((count, 3, side, side), (count, side, side), 4, device),
            classes=4,
            epoch_steps=50 if gpu else 4,
            by_hand=_LARGE if gpu else _PLAIN,
        )

    return make


def _windows(gpu: bool) -> Callable[[], Workload]:
    device = "cuda" if gpu else "cpu"

    def make() -> Workload:
        return Workload(
            key="windows",
            title="small CNN, windows of 24×16, batch 32",
            device=device,
            make_model=window_classifier,
            batch=_images((32, 24, 16), (32,), 10, device),
            classes=10,
            epoch_steps=6250 if gpu else 20,
            by_hand=_SMALL if gpu else _PLAIN,
        )

    return make


def _images(shape: tuple[int, ...], target_shape: tuple[int, ...], classes: int, device: str) -> Batch:
    draw = torch.Generator(device).manual_seed(0)
    images = torch.randn(shape, generator=draw, device=device)
    if images.dim() == 4 and device != "cpu":
        images = images.contiguous(memory_format=torch.channels_last)
    return images, torch.randint(0, classes, target_shape, generator=draw, device=device)
