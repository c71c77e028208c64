"""What the simulation knows, read from the feed's committed result: every figure names the case that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fulltilt.bench.feed.scale import scale_for
from fulltilt.bench.simulate.model import Workload
from fulltilt.errors import InputError
from fulltilt.words import milliseconds

PARAMETERS = {"resnet50": 25_557_032, "unet": 7_763_140, "windows": 9_194}
"""Of the models in bench/feed/models.py."""
_GRADIENT_BYTES = 4
"""Of a parameter: float32, as DistributedDataParallel sends it."""
_WINDOWS_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a workload's figure came from."""

    workload: str
    figure: str
    value: str
    cases: tuple[str, ...]
    """Keys in the result; empty where it is the benchmark's own setting."""


def cases_of(result: object) -> dict[str, Mapping[str, Any]]:
    """The result's cases, by their keys; another benchmark's file is refused."""
    cases = result.get("cases") if isinstance(result, Mapping) else None
    named = isinstance(cases, list) and all(isinstance(case, Mapping) and "key" in case for case in cases)
    if not cases or not named:
        parts = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        raise InputError(
            f"this is no result of `fulltilt bench feed`, which has a list `cases`, each with its key; found {parts}. "
            "Make one with `fulltilt bench feed --json feed.json`"
        )
    return {str(case["key"]): case for case in cases}


def workloads(result: Mapping[str, Any]) -> tuple[dict[str, Workload], list[Source]]:
    """Four workloads from the result of `fulltilt bench feed`, and where each of their figures is from."""
    cases = cases_of(result)
    scale = scale_for(gpu=True, quick=False, count=6144)
    photo = scale.photo_size[0] * scale.photo_size[1] * 3
    side = scale.unet_side
    unet_file = side * side * scale.photo_bytes * 3 // photo

    def of(key: str, figure: str = "samples_per_second") -> float:
        found = cases.get(key, {}).get(figure)
        if not isinstance(found, int | float) or found <= 0:
            told = "no" if found is None else f"{found!r} as"
            raise InputError(
                f"the result has {told} {figure} of {key}: give what `fulltilt bench feed --json feed.json` writes, "
                "all its parts"
            )
        return float(found)

    def launching(key: str) -> float:
        """CPU seconds of a sample without the core that launches kernels."""
        return max(0.0, of(key, "cpu_cores") - 1) / of(key)

    # With few cores at work a core is fastest: the model is an upper bound, so it takes that.
    decode = of("cores_4_cpu", "workers") / of("cores_4_cpu")
    on_gpu = 1 / of("cores_8_gpu") - 1 / of("cores_8_gpu", "limit_per_second")
    limit, unet_limit, windows_limit = of("train_limit"), of("unet_limit"), of("windows_feed_graphed")
    common: dict[str, Any] = {"batch": scale.batch, "limit_per_second": limit}
    gradients = {name: _GRADIENT_BYTES * count for name, count in PARAMETERS.items()}
    found = {
        "jpeg": Workload(
            name="jpeg", title="ResNet-50, 224², from JPEG files", core_seconds=decode, gpu_decode_seconds=on_gpu,
            file_bytes=scale.photo_bytes, sample_bytes=photo, gradient_bytes=gradients["resnet50"], **common,
        ),
        "cache": Workload(
            name="cache", title="ResNet-50, 224², from a cache of pixels", core_seconds=launching("cache"),
            file_bytes=photo, sample_bytes=photo, gradient_bytes=gradients["resnet50"], **common,
        ),
        "unet": Workload(
            name="unet", title="U-Net, 512², images and masks", core_seconds=launching("unet_fast"),
            batch=scale.unet_batch, limit_per_second=unet_limit, file_bytes=unet_file, sample_bytes=4 * side * side,
            gradient_bytes=gradients["unet"],
        ),
        "windows": Workload(
            name="windows", title="small CNN, windows that stay on the GPU", core_seconds=0.0, batch=_WINDOWS_BATCH,
            limit_per_second=windows_limit, file_bytes=0, sample_bytes=0, gradient_bytes=gradients["windows"],
        ),
    }  # fmt: skip
    return found, [
        Source(workload="ResNet-50", figure="limit of one GPU", value=f"{limit:,.0f}/s", cases=("train_limit",)),
        Source(
            workload="ResNet-50", figure="CPU time to decode and crop a JPEG, while training",
            value=milliseconds(decode), cases=("cores_4_cpu",),
        ),
        Source(
            workload="ResNet-50", figure="GPU time to decode one",
            value=milliseconds(on_gpu), cases=("cores_8_gpu",),
        ),
        Source(
            workload="ResNet-50", figure="CPU time to read a sample from a cache",
            value=milliseconds(launching("cache")), cases=("cache",),
        ),
        Source(workload="U-Net", figure="limit of one GPU", value=f"{unet_limit:,.0f}/s", cases=("unet_limit",)),
        Source(
            workload="U-Net", figure="CPU time to decode an image and its mask",
            value=milliseconds(launching("unet_fast")), cases=("unet_fast",),
        ),
        Source(
            workload="small CNN", figure="limit of one GPU", value=f"{windows_limit:,.0f}/s",
            cases=("windows_feed_graphed",),
        ),
        Source(
            workload="all", figure="bytes of a photo: file, pixels",
            value=f"{scale.photo_bytes / 1e3:.0f} KB, {photo / 1e3:.0f} KB", cases=(),
        ),
        Source(
            workload="all", figure="gradients: ResNet-50, U-Net, small CNN",
            value=", ".join(f"{gradients[name] / 1e6:.3g} MB" for name in PARAMETERS), cases=(),
        ),
    ]  # fmt: skip
