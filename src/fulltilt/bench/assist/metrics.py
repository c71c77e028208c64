"""A U-Net trained with IoU, Dice and AUROC in every step: not at all, beside the step, and in the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fulltilt.assist.beside import MetricsBeside
from fulltilt.bench.assist.figures import BESIDE_AT_LEAST
from fulltilt.bench.feed.models import UNet
from fulltilt.bench.ground import Say, finish
from fulltilt.bench.train.contest import Contestant, contest
from fulltilt.bench.train.figures import Case
from fulltilt.bench.train.workloads import Running, StepFactory, Workload
from fulltilt.train import HybridPrecisionTrainer

THRESHOLDS = 64
_ALIKE = 12
"""Runs have a multiple of so many steps, so that the last hand-over is of as many batches in each."""


def measure_metrics(*, gpu: bool, rounds: int, seconds: float, say: Say) -> tuple[str, list[Case]]:
    """What is trained, and a case for each way."""
    device, side, count, base = ("cuda", 512, 32, 32) if gpu else ("cpu", 32, 2, 2)
    draw = torch.Generator(device).manual_seed(0)
    images = torch.randn((count, 3, side, side), generator=draw, device=device)
    masks = torch.randint(0, 2, (count, side, side), generator=draw, device=device, dtype=torch.uint8)
    work = Workload(
        key="unet",
        title=f"U-Net (base {base}), {side}², batch {count}; IoU, Dice, AUROC with {THRESHOLDS} thresholds",
        device=device,
        make_model=lambda: UNet(base, classes=1),
        batch=(images, masks),
        classes=1,
        epoch_steps=0,
        by_hand={},
    )
    say("unet: settings are tried")
    model = work.make_model().to(device)
    # Not compiled, which would take most of the minute. On an H200 that is 71 ms a step instead of 43:
    # beside a compiled one the workers have as much to do in less time.
    trainer = HybridPrecisionTrainer(model, torch.optim.SGD(model.parameters(), lr=1e-3), device=device, compile=False)
    for _ in range(3):
        trainer.train_step(*work.batch)
    contestants = [
        Contestant(key="none", title="no metrics", make=_none(trainer), reference=True),
        Contestant(
            key="beside",
            title="metrics beside the step",
            make=_beside(trainer),
            at_least=BESIDE_AT_LEAST if gpu else None,
            against="none",
        ),
        Contestant(key="loop", title="metrics in the loop, on the device", make=_in_the_loop(trainer), against="none"),
    ]
    return work.title, contest(work, contestants, rounds=rounds, seconds=seconds, say=say)


def metrics() -> dict[str, Any]:
    """As a user would have them; arguments are not checked, for that would wait for the device in the loop."""
    from torchmetrics.classification import BinaryAUROC, BinaryF1Score, BinaryJaccardIndex

    return {
        "iou": BinaryJaccardIndex(validate_args=False),
        "dice": BinaryF1Score(validate_args=False),  # over counts the two are the same number
        "auroc": BinaryAUROC(thresholds=THRESHOLDS, validate_args=False),
    }


def _none(trainer: HybridPrecisionTrainer) -> StepFactory:
    return lambda work: Running(burst=_burst(work, trainer.train_step))


def _in_the_loop(trainer: HybridPrecisionTrainer) -> StepFactory:
    def make(work: Workload) -> Running:
        own = {name: metric.to(work.device) for name, metric in metrics().items()}

        def step(images: Tensor, masks: Tensor) -> None:
            _, outputs = trainer.train_step(images, masks)
            for metric in own.values():
                metric.update(outputs.squeeze(1), masks)

        return Running(burst=_burst(work, step))

    return make


def _beside(trainer: HybridPrecisionTrainer) -> StepFactory:
    def make(work: Workload) -> Running:
        beside = MetricsBeside(metrics(), torch.device(work.device), prefix="")
        notes: dict[str, Any] = {}

        def step(images: Tensor, masks: Tensor) -> None:
            _, outputs = trainer.train_step(images, masks)
            beside.add(outputs, masks)

        def drain() -> None:
            beside.hand_over()
            beside.wait()
            if beside.decision is not None:
                notes["on_device"] = sorted(beside.decision.value)
                notes["why"] = beside.decision.reason

        return Running(burst=_burst(work, step, drain), notes=notes, close=beside.close)

    return make


def _burst(
    work: Workload, step: Callable[..., Any], drain: Callable[[], None] = lambda: None
) -> Callable[[float], float]:
    """Seconds a step, until the device is done; and what its metrics were behind by then.

    Those of the last hand-over can't be counted earlier, however many steps there are: that much is always left, after
    the few steps of the warm-up, too. What is left beyond it was put off, and is added.
    """

    def run(count: int) -> tuple[float, float]:
        began = time.perf_counter()
        for _ in range(count):
            step(*work.batch)
        finish(work.device)
        stepped = time.perf_counter()
        drain()
        return max(stepped - began, 1e-9), time.perf_counter() - stepped

    def burst(seconds: float) -> float:
        warm = _ALIKE if work.device == "cuda" else 2
        took, last = run(warm)
        count = _ALIKE * math.ceil(seconds * warm / took / _ALIKE)
        took, left = run(count)
        return (took + max(0.0, left - last)) / count

    return burst
