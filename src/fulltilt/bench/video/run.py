"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import torch

from fulltilt.bench.ground import ending_at_sigterm, machine_facts, said
from fulltilt.bench.results import chosen
from fulltilt.bench.video.contest import SHARED, Ground, clips
from fulltilt.bench.video.figures import (
    BOTH_AT_LEAST,
    CPU_AT_LEAST,
    NVDEC_AT_LEAST,
    PARTS,
    Case,
    VideoBench,
)
from fulltilt.bench.video.material import LONG_GOP, Material, make_videos, megabits_per_second
from fulltilt.bench.video.rates import Crew, beside
from fulltilt.bench.video.training import Course, training
from fulltilt.errors import FulltiltError
from fulltilt.machine.cores import read_cores

Say = Callable[[str], None]
NO_GPU = "The targets need an NVIDIA GPU and a machine like it: small videos were decoded on the CPU."
_ENGINES = 14
"""Decoders that keep seven engines busy."""


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
    return chosen(text, PARTS)


def measure(
    *,
    quick: bool,
    only: Sequence[str],
    folder: Path | None = None,
    say: Say,
    keep: Callable[[VideoBench], None] = lambda _: None,
) -> VideoBench:
    """Everything that this machine can run; `say` hears what comes next, `keep` has what there is after each case."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    chosen = setting(gpu=gpu, cores=read_cores().usable, quick=quick)
    run = {"cpu": _cpu, "nvdec": _nvdec, "both": _both, "clips": _clips, "train": _train}
    machine = machine_facts({"av": "av", "PyNvVideoCodec": "PyNvVideoCodec"})
    cases: dict[tuple[str, str], Case] = {}
    title = chosen.material.title

    def so_far() -> VideoBench:
        return VideoBench(
            machine=machine,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            video=title,
            cases=tuple(cases.values()),
            seconds=time.monotonic() - began,
            problem=None if gpu else NO_GPU,
        )

    with ending_at_sigterm(), tempfile.TemporaryDirectory(prefix="fulltilt-video-", dir=folder) as home:
        say(f"{chosen.material.title}: is made")
        paths = make_videos(Path(home), chosen.material)
        title += f", {megabits_per_second(paths[0], chosen.material):.1f} Mbit/s"
        for part in PARTS:
            if part not in only:
                continue
            for case in run[part](chosen, paths, say):
                cases[case.part, case.key] = case  # one that comes again is better known than before
                keep(so_far())
    return so_far()


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    return list(islice(cycle(paths), count))


def _cpu(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    say(f"cpu: {chosen.decoders} decoders")
    title, least = f"CPU, {chosen.decoders} decoders", CPU_AT_LEAST if chosen.targets else None
    crew = Crew(_spread(paths, chosen.decoders), device=None)
    try:
        rate = crew.count(chosen.seconds).per_second
    finally:
        crew.close()
    yield Case(part="cpu", key="cpu", title=title, per_second=rate, at_least=least)


def _nvdec(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    say(f"nvdec: {chosen.engines} decoders")
    title, least = f"NVDEC, {chosen.engines} decoders, RGB on the device", NVDEC_AT_LEAST if chosen.targets else None
    try:
        crew = Crew(_spread(paths, chosen.engines), device=chosen.device)
        try:
            rate = crew.count(chosen.seconds).per_second
        finally:
            crew.close()
    except FulltiltError as error:
        yield Case(part="nvdec", key="nvdec", title=title, at_least=least, problem=said(error))
        return
    yield Case(part="nvdec", key="nvdec", title=title, per_second=rate, at_least=least)


def _both(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
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
        yield Case(part="both", key="both", title=title, at_least=least, problem=said(error))
        return
    notes = {
        "cpu_frames_per_second": round(there.per_second),
        "nvdec_frames_per_second": round(here.per_second),
    }
    rate = there.per_second + here.per_second
    yield Case(part="both", key="both", title=title, per_second=rate, at_least=least, notes=notes)


def _clips(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """From videos with key frames close together, then from such as encoders make unless told otherwise."""
    ground = Ground(
        frames=chosen.material.frames,
        size=chosen.size,
        batch=chosen.batch,
        workers=chosen.decoders,
        device=chosen.device,
        seconds=chosen.seconds,
        targets=chosen.targets,
    )
    share: float | None = None
    for case in clips(paths, ground, say):
        share = case.notes.get("gpu_share") if case.key == SHARED else share
        yield case
    with tempfile.TemporaryDirectory(prefix="long-", dir=paths[0].parent) as home:
        far = make_videos(Path(home), replace(chosen.material, gop=LONG_GOP))
        yield from clips(far, replace(ground, long=True, share=share), say)


def _train(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    course = Course.large() if chosen.targets else Course.small()
    folder = paths[0].parent / "train"
    return training(folder, course, chosen.device, chosen.seconds, targets=chosen.targets, say=say)
