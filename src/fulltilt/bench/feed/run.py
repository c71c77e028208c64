"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from fulltilt.bench.feed.figures import Case, FeedBench
from fulltilt.bench.feed.grid import measure_grid
from fulltilt.bench.feed.ladder import measure_ladder
from fulltilt.bench.feed.material import bytes_needed, make_in_parallel, workplace
from fulltilt.bench.feed.models import CLASSES
from fulltilt.bench.feed.scale import Scale, scale_for
from fulltilt.bench.feed.training import Training
from fulltilt.bench.feed.unet import measure_unet
from fulltilt.bench.feed.windows import measure_windows
from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.feed import ImageFiles
from fulltilt.machine.cores import read_cores

_PACKAGES = {"torchvision": "torchvision", "simplejpeg": "simplejpeg", "PIL": "pillow"}

NO_GPU = "The targets need an NVIDIA GPU that torch can use: small photos and tiny models were run on the CPU."
PARTS = ("ladder", "train", "cores", "unet", "windows", "grid")


def measure(
    *,
    count: int,
    folder: Path | None,
    quick: bool,
    only: Sequence[str],
    say: Say,
    keep: Callable[[FeedBench], None] = lambda _: None,
) -> FeedBench:
    """Everything that this machine can run; `say` hears what comes next, `keep` what there is after each part."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    scale = scale_for(gpu=gpu, quick=quick, count=count)
    photos = bool({"ladder", "train", "cores"} & set(only))
    needed = bytes_needed(scale.photos, scale.photo_size, scale.photo_bytes) if photos else 0
    with workplace(folder, needed_bytes=needed) as place:
        for cases in _cases(place, scale, quick=quick, only=only, say=say):
            found = FeedBench(
                machine=machine_facts(_PACKAGES),
                date=now(),
                material=_material(scale, str(place.parent)),
                cases=tuple(cases),
                seconds=time.monotonic() - began,
                problem=None if gpu else NO_GPU,
            )
            keep(found)
    return found


def _cases(place: Path, scale: Scale, *, quick: bool, only: Sequence[str], say: Say) -> Iterator[list[Case]]:
    """All cases so far, after each part."""
    cores = read_cores().usable

    @cache
    def files() -> ImageFiles:
        say(f"making {scale.photos} photos")
        paths, _ = make_in_parallel(
            place / "photos", scale.photos, size=scale.photo_size, target_bytes=scale.photo_bytes, processes=cores
        )
        return ImageFiles(paths, labels=[index % CLASSES for index in range(len(paths))])

    @cache
    def training() -> Training:  # compiled once for both of its parts
        return Training(files(), place, scale, cores=cores)

    parts: dict[str, Callable[[], list[Case]]] = {
        "ladder": lambda: measure_ladder(files(), scale, cores=cores, quick=quick, say=say),
        "train": lambda: training().measure(say=say),
        "cores": lambda: training().measure_cores(quick=quick, say=say),
        "unet": lambda: measure_unet(place, scale, cores=cores, say=say),
        "windows": lambda: measure_windows(scale, say=say),
        "grid": lambda: measure_grid(scale, cores=cores, quick=quick, say=say),
    }
    cases: list[Case] = []
    for part in only:
        cases += _part(part, parts[part])
        if scale.gpu:
            torch.cuda.empty_cache()
        yield cases


def _part(part: str, run: Callable[[], list[Case]]) -> list[Case]:
    """A part that can't even begin (no room for its model, a compiler that fails) is one line; the next goes on."""
    try:
        return run()
    except Exception as error:
        return [Case(part=part, key=part, title="all of it", problem=said(error))]


def _material(scale: Scale, where: str) -> str:
    width, height = scale.photo_size
    return f"{scale.photos} JPEG of about {width}×{height}, {scale.photo_bytes // 1000} KB, in {where}"
