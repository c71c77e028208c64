"""Our own cases: what goes in, which module, how many bytes at least, and what was promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fulltilt.augment import GPUAugmentation, MinimalGPUAugmentation, Ragged, StrongGPUAugmentation
from fulltilt.bench.augment.figures import target
from fulltilt.bench.augment.task import CLASSES, OPTIONS, Task, floor_bytes, random_bytes, sets_needed
from fulltilt.bench.target import Target

PROMISED = (32, 512)
"""The batch and size that the task's targets are about."""
_OUT: dict[str, Any] = {"dtype": torch.bfloat16, "channels_last": True}
_CROP_SHARE = 0.54
"""Mean area of a random resized crop (0.08 to 1): more of an image need not be read."""

Inputs = tuple[Any, Any]
"""Images, and masks or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A case before it is measured."""

    key: str
    title: str
    module: Callable[[], GPUAugmentation]
    make: Callable[[], Inputs]
    """A fresh random input."""
    bytes_in: int
    bytes_moved: int
    """The memory floor."""
    wanted: tuple[Target, ...] = ()
    graph: bool = True
    """Whether a CUDA graph can hold the call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ready:
    """A module and its inputs, to be called in turn."""

    module: GPUAugmentation
    inputs: list[Inputs]

    def __call__(self, k: int) -> Any:
        images, masks = self.inputs[k % len(self.inputs)]
        return self.module(images) if masks is None else self.module(images, masks)


def get_ready(plan: Plan, *, device: str, sets: int | None = None) -> Ready:
    count = sets_needed(plan.bytes_in, device) if sets is None else sets
    return Ready(module=plan.module().to(device), inputs=[plan.make() for _ in range(count)])


def plans(task: Task, *, quick: bool) -> list[Plan]:
    """The task first; then the other cases with targets; then, unless quick, those without."""
    promised = (task.batch, task.size) == PROMISED
    found = [_dense(task, "task", wanted=_task_wanted(task) if promised else ())]
    if task.masks:
        plain = Task(batch=task.batch, size=task.size, masks=False, device=task.device)
        found.append(_dense(plain, "task_no_masks", wanted=_task_wanted(plain) if promised else ()))
    near_floor = (target("floor_ratio", 3.0),)
    for masks in (True, False):
        small = Task(batch=256, size=224, masks=masks, device=task.device)
        found.append(_dense(small, "small" if masks else "small_no_masks", wanted=near_floor))
    strong_wanted = (target("gpu_ms", 0.30), target("wall_ms", 0.30))
    strong = Task(batch=task.batch, size=task.size, masks=True, device=task.device)
    found.append(
        _dense(strong, "strong", "Strong", module=_strong, wanted=strong_wanted if promised else ()),
    )
    found += [_crops(task.device, as_list=False), _crops(task.device, as_list=True)]
    return found if quick else found + _others(task)


def _others(task: Task) -> list[Plan]:
    plain = Task(batch=task.batch, size=task.size, masks=False, device=task.device)
    return [
        _dense(plain, "nchw", "N×C×H×W in", make=lambda: (_planes(plain), None)),
        _dense(plain, "float32", "float32 in", make=lambda: (_planes(plain).float().div_(255), None), bytes_each=4),
        _dense(task, "minimal", "Minimal", module=_minimal),
        _clips(task.device),
    ]


def _task_wanted(task: Task) -> tuple[Target, ...]:
    times = (target("gpu_ms", 0.08), target("wall_ms", 0.10))
    if not task.masks:
        return times
    return (
        *times,
        target("times_kornia", 50.0),
        target("times_triton_augment", 14.0),
    )


def _dense(
    task: Task,
    key: str,
    label: str = "",
    *,
    module: Callable[[], GPUAugmentation] | None = None,
    make: Callable[[], Inputs] | None = None,
    bytes_each: int = 1,
    wanted: tuple[Target, ...] = (),
) -> Plan:
    def default() -> Inputs:
        images = random_bytes(task.batch, task.size, task.size, 3, device=task.device)
        return images, _labels(task) if task.masks else None

    return Plan(
        key=key,
        title=f"{label}, {task.title}" if label else task.title,
        module=module or _task_module,
        make=make or default,
        bytes_in=task.pixels * (3 * bytes_each + task.masks),
        bytes_moved=floor_bytes(pixels_in=task.pixels, pixels_out=task.pixels, bytes_in=bytes_each, masks=task.masks),
        wanted=wanted,
    )


def _task_module() -> GPUAugmentation:
    return GPUAugmentation(**OPTIONS, **_OUT)


def _strong() -> GPUAugmentation:
    return StrongGPUAugmentation(normalize="imagenet", **_OUT)


def _minimal() -> GPUAugmentation:
    return MinimalGPUAugmentation(normalize="imagenet", **_OUT)


def _planes(task: Task) -> Tensor:
    return random_bytes(task.batch, 3, task.size, task.size, device=task.device)


def _labels(task: Task) -> Tensor:
    return random_bytes(task.batch, task.size, task.size, device=task.device, below=CLASSES)


def _clips(device: str) -> Plan:
    count, frames, size = 16, 8, 224
    pixels = count * frames * size * size
    return Plan(
        key="clips",
        title=f"clips {count}×{frames}×{size}²",
        module=_task_module,
        make=lambda: (random_bytes(count, frames, size, size, 3, device=device), None),
        bytes_in=pixels * 3,
        bytes_moved=floor_bytes(pixels_in=pixels, pixels_out=pixels),
    )


def _crops(device: str, *, as_list: bool, count: int = 256, size: int = 224) -> Plan:
    """Random resized crops of images around 500×375, as a decoder leaves them: one behind the other in a buffer."""
    generator = torch.Generator().manual_seed(1)
    heights = torch.randint(320, 431, (count,), generator=generator)
    widths = torch.randint(430, 571, (count,), generator=generator)
    ends = (heights * widths * 3).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    total = int(ends[-1])
    limit = target("gpu_ms", 0.15)

    def make() -> Inputs:
        flat = random_bytes(total, device=device)
        if as_list:
            cuts = zip(starts.tolist(), heights.tolist(), widths.tolist(), strict=True)
            return [flat[at : at + h * w * 3].view(h, w, 3) for at, h, w in cuts], None
        sizes = torch.stack([heights, widths], 1).int()
        smallest = int(sizes.min())
        return Ragged(data=flat, offsets=starts.to(device), sizes=sizes.to(device), smallest=smallest), None

    return Plan(
        key="crops_list" if as_list else "crops",
        title=f"{count} crops ~500×375→{size}²" + (", list" if as_list else ""),
        module=lambda: GPUAugmentation(
            horizontal_flip_prob=0.5, rotation_degrees=0, brightness=0, contrast=0,
            random_resized_crop=True, size=size, normalize="imagenet", **_OUT,
        ),
        make=make,
        bytes_in=total,
        bytes_moved=floor_bytes(pixels_in=total / 3 * _CROP_SHARE, pixels_out=count * size * size),
        # A list is 256 tensors to look at on every call: its wall time is Python's.
        wanted=(limit,) if as_list else (limit, target("wall_ms", 0.15)),
        graph=not as_list,
    )  # fmt: skip
