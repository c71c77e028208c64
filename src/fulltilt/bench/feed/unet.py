"""A U-Net on images with masks, both augmented on the device."""

from __future__ import annotations

from pathlib import Path

import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.bench.feed.figures import Case, Rate, target
from fulltilt.bench.feed.limit import Limit, Plan, against
from fulltilt.bench.feed.material import make_in_parallel
from fulltilt.bench.feed.measure import endless, measure
from fulltilt.bench.feed.models import Step, UNet
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say
from fulltilt.feed import Feed, ImageFiles, feed

PART = "unet"
FED = target("share", 0.95)


def measure_unet(place: Path, scale: Scale, *, cores: int, say: Say) -> list[Case]:
    say(f"{PART}: making {scale.unet_photos} images with masks")
    side = scale.unet_side
    images, masks = make_in_parallel(
        place / "unet", scale.unet_photos, size=(side, side), processes=cores, vary=0.0, masks=True,
        target_bytes=int(side * side * scale.photo_bytes / (scale.photo_size[0] * scale.photo_size[1])),
    )  # fmt: skip
    files = ImageFiles(images, masks=masks)
    step = Step(UNet(scale.unet_base), scale.device, half=scale.gpu, compiled=scale.gpu)
    workers = max(1, cores - 1)
    say(f"{PART}: compiling" if scale.gpu else f"{PART}: the limit")
    with _feed(files, scale, workers) as it:
        batch = tuple(tensor.clone() for tensor in next(iter(it)))
    plan = Plan(
        key="unet_fast",
        title="feed, fast, U-Net with masks and augmentation",
        run=lambda: _fed(files, step, scale, workers),
        wanted=(FED,) if scale.gpu else (),
    )
    title = f"limit: U-Net (base {scale.unet_base}) {side}², batch {scale.unet_batch}"
    return against(Limit(step, batch, scale), PART, title, [plan], say)


def _feed(files: ImageFiles, scale: Scale, workers: int) -> Feed:
    augment = GPUAugmentation(
        0.5, 15, 0.2, 0.2, size=scale.unet_side, normalize="imagenet", channels_last=True,
        dtype=torch.bfloat16 if scale.gpu else torch.float32,
    ).to(scale.device)  # fmt: skip
    return feed(
        files, batch_size=scale.unet_batch, device=scale.device, shuffle=True, drop_last=True, augment=augment,
        num_workers=workers, quality="fast",
    )  # fmt: skip


def _fed(files: ImageFiles, step: Step, scale: Scale, workers: int) -> Rate:
    with _feed(files, scale, workers) as it:
        rate = measure(
            endless(it), step, device=scale.device, warm=scale.warm_steps, steps=scale.steps, seconds=scale.seconds,
            feed=it,
        )  # fmt: skip
    step.check()
    return rate
