"""The feed alone, no training: how fast so many decoders are."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch

from fulltilt.augment import GPUAugmentation
from fulltilt.bench.feed.figures import Case, Rate, target
from fulltilt.bench.feed.limit import Plan, attempt
from fulltilt.bench.feed.measure import endless, measure
from fulltilt.bench.feed.scale import Scale
from fulltilt.bench.ground import Say
from fulltilt.feed import ImageFiles, feed
from fulltilt.words import many

PART = "ladder"
ALONE = target("samples_per_second", 9000)
"""With all cores and fast decoding."""

Quality = Literal["fast", "exact"]


def measure_ladder(files: ImageFiles, scale: Scale, *, cores: int, quick: bool, say: Say) -> list[Case]:
    cases = []
    for quality in get_args(Quality):
        for decoders in rungs(cores, quick=quick):
            plan = Plan(
                key=f"alone_{quality}_{decoders}",
                title=f"feed alone, {quality}, {many(decoders, 'decoder')}",
                run=partial(_alone, files, scale, decoders, quality),
                wanted=(ALONE,) if scale.gpu and quality == "fast" and decoders == cores else (),
            )
            cases.append(attempt(PART, plan, say))
    return cases


def rungs(cores: int, *, quick: bool) -> list[int]:
    """1, 2, 4, 8, all but one and all, as far as there are cores."""
    wanted = {1, cores} if quick else {1, 2, 4, 8, cores - 1, cores}
    return sorted(n for n in wanted if 1 <= n <= cores)


def augmentation(scale: Scale) -> GPUAugmentation:
    """Random resized crop, flip, normalise; in the type and memory format that the step wants."""
    return GPUAugmentation(
        0.5, 0, 0, 0, random_resized_crop=True, size=scale.crop, normalize="imagenet", channels_last=True,
        dtype=torch.bfloat16 if scale.gpu else torch.float32,
    ).to(scale.device)  # fmt: skip


def _alone(files: ImageFiles, scale: Scale, decoders: int, quality: Quality) -> Rate:
    # Decoders don't start all at once: there is a batch for each before the clock runs.
    with feed(
        files, batch_size=scale.batch, device=scale.device, shuffle=True, drop_last=True,
        augment=augmentation(scale), num_workers=decoders, quality=quality,
    ) as it:  # fmt: skip
        return measure(
            endless(it),
            None,
            device=scale.device,
            warm=decoders + 1,
            steps=1000,
            seconds=scale.ladder_seconds,
            feed=it,
        )
