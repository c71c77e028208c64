"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import torch

from fulltilt.bench.ground import machine_facts, said
from fulltilt.bench.video.clips import feed_rate, loader_rate
from fulltilt.bench.video.figures import (
    BOTH_AT_LEAST,
    CPU_AT_LEAST,
    NVDEC_AT_LEAST,
    PARTS,
    TIMES_LOADER,
    Case,
    VideoBench,
)
from fulltilt.bench.video.material import Material, make_videos, megabits_per_second
from fulltilt.bench.video.rates import Crew, beside
from fulltilt.cache import CacheSettings
from fulltilt.cache.video import build_videos
from fulltilt.errors import FulltiltError, InputError
from fulltilt.machine.cores import read_cores

Say = Callable[[str], None]
NO_GPU = "The targets need an NVIDIA GPU and a machine like it: small videos were decoded on the CPU."
_ENGINES = 14
"""Decoders that keep seven engines busy."""

_PEERS = (
    ("loader", "from the beginning", False, False),
    ("loader_jumps", "from a key frame, scaled by torch", True, False),
    ("loader_scaled", "from a key frame, scaled by swscale", True, True),
)
"""DataLoaders: key, how, whether they jump, whether swscale scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How large everything is."""

    material: Material
    device: str
    decoders: int
    engines: int
    size: int
    """Height and width of clips."""
    batch: int
    seconds: float
    targets: bool


def setting(*, gpu: bool, cores: int, quick: bool) -> Setting:
    """By what there is; targets only for what they were set for."""
    material = (
        Material(width=1280, height=720, frames=320, files=16)
        if gpu
        else Material(width=256, height=144, frames=64, files=2)
    )
    return Setting(
        material=material,
        device="cuda:0" if gpu else "cpu",
        decoders=max(1, min(16, cores)),
        engines=_ENGINES,
        size=224 if gpu else 64,
        batch=8 if gpu else 4,
        seconds=(2.0 if quick else 5.0) if gpu else (0.2 if quick else 2.0),
        targets=gpu,
    )


def parts_of(text: str) -> tuple[str, ...]:
    """`cpu,clips` as parts, in the order in which they are run."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - set(PARTS))
    if unknown or not wanted:
        raise InputError(f"--only: found {', '.join(unknown) or 'nothing'}; allowed: {', '.join(PARTS)}")
    return tuple(name for name in PARTS if name in wanted)


def measure(*, quick: bool, only: Sequence[str], folder: Path | None = None, say: Say) -> VideoBench:
    """Everything that this machine can run; `say` hears what comes next."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    chosen = setting(gpu=gpu, cores=read_cores().usable, quick=quick)
    run = {"cpu": _cpu, "nvdec": _nvdec, "both": _both, "clips": _clips}
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="fulltilt-video-", dir=folder) as home:
        say(f"{chosen.material.title}: is made")
        paths = make_videos(Path(home), chosen.material)
        title = f"{chosen.material.title}, {megabits_per_second(paths[0], chosen.material):.1f} Mbit/s"
        for part in PARTS:
            if part in only:
                cases += run[part](chosen, paths, say)
    return VideoBench(
        machine=machine_facts({"av": "av", "PyNvVideoCodec": "PyNvVideoCodec"}),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        video=title,
        cases=tuple(cases),
        seconds=time.monotonic() - began,
        problem=None if gpu else NO_GPU,
    )


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    return list(islice(cycle(paths), count))


def _cpu(chosen: Setting, paths: list[Path], say: Say) -> list[Case]:
    say(f"cpu: {chosen.decoders} decoders")
    crew = Crew(_spread(paths, chosen.decoders), device=None)
    try:
        rate = crew.count(chosen.seconds).per_second
    finally:
        crew.close()
    title = f"CPU, {chosen.decoders} decoders"
    return [
        Case(part="cpu", key="cpu", title=title, per_second=rate, at_least=CPU_AT_LEAST if chosen.targets else None)
    ]


def _nvdec(chosen: Setting, paths: list[Path], say: Say) -> list[Case]:
    say(f"nvdec: {chosen.engines} decoders")
    title, least = f"NVDEC, {chosen.engines} decoders, RGB on the device", NVDEC_AT_LEAST if chosen.targets else None
    try:
        crew = Crew(_spread(paths, chosen.engines), device=chosen.device)
        try:
            rate = crew.count(chosen.seconds).per_second
        finally:
            crew.close()
    except FulltiltError as error:
        return [Case(part="nvdec", key="nvdec", title=title, at_least=least, problem=said(error))]
    return [Case(part="nvdec", key="nvdec", title=title, per_second=rate, at_least=least)]


def _both(chosen: Setting, paths: list[Path], say: Say) -> list[Case]:
    # Feeding the engines takes cores too.
    decoders = max(1, chosen.decoders - 2)
    say(f"both: {decoders} decoders of the CPU, {chosen.engines} of the GPU")
    title = f"CPU ({decoders}) and NVDEC ({chosen.engines}) together"
    least = BOTH_AT_LEAST if chosen.targets else None
    try:
        crew = Crew(_spread(paths, chosen.engines), device=chosen.device)
        try:
            there, here = beside(_spread(paths, decoders), crew, chosen.seconds)
        finally:
            crew.close()
    except FulltiltError as error:
        return [Case(part="both", key="both", title=title, at_least=least, problem=said(error))]
    notes = {
        "cpu_frames_per_second": round(there.per_second),
        "nvdec_frames_per_second": round(here.per_second),
    }
    rate = there.per_second + here.per_second
    return [Case(part="both", key="both", title=title, per_second=rate, at_least=least, notes=notes)]


def _clips(chosen: Setting, paths: list[Path], say: Say) -> list[Case]:
    """One after another; the feed is compared with the fastest of the others."""
    workers = chosen.decoders
    cases = []
    for key, how, jumps, scaled in _PEERS:
        say(f"clips: DataLoader, {how}")
        rate = loader_rate(
            paths,
            frames=chosen.material.frames,
            size=chosen.size,
            batch=chosen.batch,
            workers=workers,
            device=chosen.device,
            seconds=chosen.seconds,
            jumps=jumps,
            scaled=scaled,
        )
        title = f"DataLoader, PyAV per item, {how}, {workers} workers"
        cases.append(Case(part="clips", key=key, title=title, per_second=rate, unit="clips"))
    say("clips: feed")
    rate, notes = feed_rate(
        paths, size=chosen.size, batch=chosen.batch, workers=workers, device=chosen.device, seconds=chosen.seconds
    )
    best = max(case.per_second or 0.0 for case in cases)
    against = {f"times_{case.key}": round(rate / case.per_second, 2) for case in cases if case.per_second}
    ours = Case(
        part="clips",
        key="feed",
        title=f"feed(VideoClips), {workers} workers",
        per_second=rate,
        unit="clips",
        times=rate / best,
        at_least=TIMES_LOADER if chosen.targets else None,
        notes={**notes, **against},
    )
    say("clips: feed, from a cache")
    folder = paths[0].parent / "cache"
    built = build_videos(folder, paths, settings=CacheSettings(size=chosen.size))
    rate, notes = feed_rate(
        paths,
        size=chosen.size,
        batch=chosen.batch,
        workers=workers,
        device=chosen.device,
        seconds=chosen.seconds,
        cache=folder,
    )
    cached = Case(
        part="clips",
        key="feed_cached",
        title=f"feed(VideoClips) from a cache, {workers} workers",
        per_second=rate,
        unit="clips",
        times=rate / best,
        notes={**notes, "cache_frames_per_second": round(built.frames / built.seconds), "cache_bytes": built.bytes},
    )
    return [*cases, ours, cached]
