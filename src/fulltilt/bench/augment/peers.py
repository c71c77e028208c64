"""The same task by other means. Each takes float32 N×C×H×W in [0, 1], already on the device: what it would cost them to
get there from bytes is not counted. Each draws per sample, bilinear, except where its line says otherwise."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fulltilt.bench.augment.figures import Peer
from fulltilt.bench.augment.task import (
    BRIGHTNESS,
    CLASSES,
    CONTRAST,
    DEGREES,
    FLIP_PROB,
    MEAN,
    STD,
    Task,
    random_bytes,
    sets_needed,
)
from fulltilt.bench.augment.timing import Call, time_on_cpu, time_on_gpu
from fulltilt.bench.ground import said
from fulltilt.machine.software import is_installed

Apply = Callable[[Tensor, Tensor | None], Any]
"""Images N×3×H×W float and masks N×1×H×W uint8, or None -> whatever the peer gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A peer that can be called on a batch on the device."""

    name: str
    takes: str
    build: Callable[[str], Apply]
    """Made for a device."""
    needs: str | None = None
    """The module it can't do without."""
    masks: bool = True
    gpu_only: bool = False
    quick: bool = True
    """Measured with --quick too."""


def measure_peer(contender: Contender, task: Task, inputs: list[tuple[Tensor, Tensor | None]]) -> Peer:
    """Its times, or why there are none: whatever a peer raises is its own line, and the others go on."""
    masks = contender.masks and task.masks
    known: dict[str, Any] = {"name": contender.name, "takes": contender.takes, "masks": masks}
    if contender.needs and not is_installed(contender.needs):
        return Peer(**known, problem=f"not installed: pip install {contender.needs.replace('_', '-')}")
    if contender.gpu_only and task.device == "cpu":
        return Peer(**known, problem="needs a GPU")
    try:
        call = calling(contender.build(task.device), inputs, masks=masks)
        timing = time_on_cpu(call) if task.device == "cpu" else time_on_gpu(call)
    except Exception as error:
        return Peer(**known, problem=said(error))
    return Peer(**known, timing=timing)


def calling(apply: Apply, inputs: list[tuple[Tensor, Tensor | None]], *, masks: bool) -> Call:
    def call(k: int) -> Any:
        images, labels = inputs[k % len(inputs)]
        return apply(images, labels if masks else None)

    return call


def float_inputs(task: Task) -> list[tuple[Tensor, Tensor | None]]:
    count = sets_needed(task.pixels * 12, task.device)
    planes = (task.batch, 3, task.size, task.size)
    return [(random_bytes(*planes, device=task.device).float().div_(255), _labels(task)) for _ in range(count)]


def _labels(task: Task) -> Tensor | None:
    if not task.masks:
        return None
    return random_bytes(task.batch, 1, task.size, task.size, device=task.device, below=CLASSES)


def contenders(task: Task, *, quick: bool) -> list[Contender]:
    whole = "float32 in and out"
    every = (
        Contender(name="Kornia", takes=whole, build=kornia_apply, needs="kornia"),
        Contender(
            name="Kornia, images only", takes=whole, build=kornia_apply, needs="kornia", masks=False, quick=False
        ),
        Contender(name="torchvision v2, one draw", takes=whole, build=_torchvision_batch, needs="torchvision"),
        Contender(
            name="torchvision v2, per sample", takes=whole, build=_torchvision_samples, needs="torchvision", quick=False
        ),
        Contender(
            name="triton-augment",
            takes=whole,
            build=_triton_augment,
            needs="triton_augment",
            masks=False,
            gpu_only=True,
        ),
        Contender(name="torch, one grid_sample", takes="float32 in, bf16 out", build=composed_apply),
    )
    without_twins = [one for one in every if task.masks or one.name != "Kornia, images only"]
    return [one for one in without_twins if one.quick or not quick]


def kornia_apply(device: str) -> Apply:
    with _quiet():
        from kornia.augmentation import (
            AugmentationSequential,
            Normalize,
            RandomBrightness,
            RandomContrast,
            RandomHorizontalFlip,
            RandomRotation,
        )

    steps = (
        RandomHorizontalFlip(p=FLIP_PROB),
        RandomRotation(DEGREES, p=1.0, align_corners=False),
        RandomBrightness((1 - BRIGHTNESS, 1 + BRIGHTNESS), p=1.0),
        RandomContrast((1 - CONTRAST, 1 + CONTRAST), p=1.0),
        Normalize(torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)),
    )
    images_only = AugmentationSequential(*steps, data_keys=["input"])
    with_masks = AugmentationSequential(*steps, data_keys=["input", "mask"])

    def apply(images: Tensor, masks: Tensor | None) -> Any:
        # Its masks have to be floats; what turning them costs is the task's, whose masks are bytes.
        return images_only(images) if masks is None else with_masks(images, masks.float())

    return apply


def _torchvision() -> Callable[..., Any]:
    with _quiet():
        from torchvision.transforms import InterpolationMode, v2

    steps: Callable[..., Any] = v2.Compose(
        [
            v2.RandomHorizontalFlip(FLIP_PROB),
            v2.RandomRotation(DEGREES, interpolation=InterpolationMode.BILINEAR),
            v2.ColorJitter(brightness=BRIGHTNESS, contrast=CONTRAST),
            v2.Normalize(mean=list(MEAN), std=list(STD)),
        ]
    )
    return steps


def _torchvision_batch(_device: str) -> Apply:
    steps = _torchvision()
    from torchvision.tv_tensors import Image, Mask

    def apply(images: Tensor, masks: Tensor | None) -> Any:
        return steps(images) if masks is None else steps(Image(images), Mask(masks))

    return apply


def _torchvision_samples(device: str) -> Apply:
    whole = _torchvision_batch(device)

    def apply(images: Tensor, masks: Tensor | None) -> Any:
        if masks is None:
            return torch.stack([whole(image, None) for image in images])
        pairs = [whole(image, mask) for image, mask in zip(images, masks, strict=True)]
        return torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs])

    return apply


def _triton_augment(_device: str) -> Apply:
    os.environ.setdefault("TRITON_AUGMENT_SUPPRESS_FIRST_RUN_MESSAGE", "1")
    with _quiet():
        import triton_augment

    fused = triton_augment.TritonFusedAugment(
        horizontal_flip_p=FLIP_PROB,
        degrees=DEGREES,
        interpolation=triton_augment.InterpolationMode.BILINEAR,
        brightness=BRIGHTNESS,
        contrast=CONTRAST,
        mean=MEAN,
        std=STD,
    )
    return lambda images, masks: fused(images)  # noqa: ARG005


def composed_apply(device: str) -> Apply:
    """What a careful user writes by hand: one matrix per sample, one grid, one colour pass, and our kind of output."""
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    return lambda images, masks: composed(images, masks, mean, std)


def composed(images: Tensor, masks: Tensor | None, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor | None]:
    count = len(images)
    flips, turns, lights, spreads = torch.rand(4, count, device=images.device)
    side = torch.where(flips < FLIP_PROB, -1.0, 1.0)
    angle = (2.0 * turns - 1.0) * math.radians(DEGREES)
    cosine, sine, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    matrix = torch.stack([cosine * side, -sine, zero, sine * side, cosine, zero], 1).view(count, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    light = (1.0 + (2.0 * lights - 1.0) * BRIGHTNESS).view(-1, 1, 1, 1)
    spread = (1.0 + (2.0 * spreads - 1.0) * CONTRAST).view(-1, 1, 1, 1)
    out = F.grid_sample(images, grid, align_corners=False)
    out = (out * (light * spread) + (0.5 - 0.5 * spread)).clamp(0.0, 1.0)
    out = ((out - mean) / std).to(torch.bfloat16, memory_format=torch.channels_last)
    if masks is None:
        return out, None
    return out, F.grid_sample(masks.float(), grid, mode="nearest", align_corners=False).to(masks.dtype)


@contextlib.contextmanager
def _quiet() -> Any:
    """Without what packages print while they are imported."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
