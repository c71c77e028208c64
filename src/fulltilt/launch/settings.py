"""Settings that can be put upon a script from outside, each of a level. Small data: what `apply/` knows to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fulltilt.diagnose.finding import Level
from fulltilt.measure.observation import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One thing that can be set."""

    level: Level
    says: str
    """What it does, for people."""
    by_hand: str
    """The edit that does the same in the script; `{value}` is the setting's, `{optimizer}` the script's, `{command}`
    what starts it."""


SETTINGS: dict[str, Kind] = {
    "loader.num_workers": Kind(
        level="exact",  # order and maths are; where samples draw, `search/redrawn.py` says what is not
        says="worker processes of the loader",
        by_hand="DataLoader(…, num_workers={value})",
    ),
    "loader.undrawn": Kind(
        level="exact",
        says="restricts num_workers to the loaders named, whose samples draw no random numbers",
        by_hand="# num_workers of {value} alone",
    ),
    "loader.prefetch_factor": Kind(
        level="exact", says="batches each worker is ahead", by_hand="DataLoader(…, prefetch_factor={value})"
    ),
    "loader.persistent_workers": Kind(
        level="exact", says="workers live from epoch to epoch", by_hand="DataLoader(…, persistent_workers={value})"
    ),
    "loader.keep_memory": Kind(
        level="exact",
        says="workers reuse freed memory instead of returning it to the system",
        by_hand="MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456 {command}",
    ),
    "loader.pin_memory": Kind(
        level="exact", says="batches in pinned memory", by_hand="DataLoader(…, pin_memory={value})"
    ),
    "loader.ahead": Kind(
        level="exact",
        says="batches are brought to the device ahead, on a stream of their own",
        by_hand="for batch in fulltilt.feed.feed(loader): …",
    ),
    "loader.resident": Kind(
        level="exact",
        says="tensors in memory are cut in batches directly, on the device where they fit",
        by_hand="for batch in fulltilt.feed.feed(tensors, batch_size=…): …",
    ),
    "loader.bytes": Kind(
        level="exact",
        says="images leave the workers as bytes; ToTensor and Normalize are looked up on the GPU, bit for bit",
        by_hand="transform=Compose([…, PILToTensor()]), then in the loop: images = normalize(images.to(device) / 255), "
        "with the transforms' own figures",
    ),
    "threads": Kind(
        level="numeric", says="threads of torch in the training process", by_hand="torch.set_num_threads({value})"
    ),
    "copy.non_blocking": Kind(
        level="exact", says="copies to the device do not hold the host", by_hand="tensor.to(device, non_blocking=True)"
    ),
    "fused": Kind(level="numeric", says="the optimizer's fused kernel", by_hand="{optimizer}(…, fused=True)"),
    "tf32": Kind(
        level="numeric", says="float32 products on tensor cores", by_hand='torch.set_float32_matmul_precision("high")'
    ),
    "cudnn_benchmark": Kind(
        level="numeric", says="cuDNN tries its algorithms", by_hand="torch.backends.cudnn.benchmark = True"
    ),
    "channels_last": Kind(
        level="numeric",
        says="images and weights in channels_last",
        by_hand="model.to(memory_format=torch.channels_last)",
    ),
    "autocast": Kind(
        level="numeric", says="products in half precision", by_hand='with torch.autocast("cuda", torch.{value}): …'
    ),
    "graphs": Kind(
        level="numeric",
        says="the model's forward and backward are CUDA graphs, each launched at once",
        by_hand="model = torch.cuda.make_graphed_callables(model, (images,))",
    ),
    "compile": Kind(level="numeric", says="the model is compiled", by_hand="model.compile()"),
    "decode": Kind(
        level="numeric",
        says="JPEGs decoded by simplejpeg instead of Pillow",
        by_hand="Image.fromarray(simplejpeg.decode_jpeg(data)) of the file's bytes, instead of Image.open(path)",
    ),
    "augment": Kind(
        level="semantic",
        says="recognised transforms done on the GPU, for a whole batch at once; the random draws differ",
        by_hand="transform=PILToTensor(), then in the loop: images = augment(images.cuda(non_blocking=True)), where "
        "augment = fulltilt.augment.GPUAugmentation(…) with the transforms' own figures",
    ),
    "loader.batch_size": Kind(
        level="semantic",
        says="samples of a training batch",
        by_hand="DataLoader(…, batch_size={value}), with a learning rate to match",
    ),
}


def loader_name(place: Place | None, dataset: str, samples: int | None) -> str:
    """By which a loader is found again in another run: `train.py:13 Photos 50000`. One line may make several."""
    where = "?" if place is None else f"{os.path.basename(place.file)}:{place.line}"
    return f"{where} {dataset} {samples}"


Settings = dict[str, Any]
"""Names of the table above and their values: `{"loader.num_workers": 8, "tf32": True}`."""


def feeds_only(settings: Mapping[str, Any]) -> bool:
    """The step's limit stays what it was."""
    return "loader.batch_size" not in settings and all(
        name.startswith(("loader.", "copy.", "decode")) for name in settings
    )
