"""All of the benchmark in order, so that nothing else runs while something is measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from fulltilt.bench.ground import Say, machine_facts, now, said
from fulltilt.bench.video.contest import SHARED, Ground, clips, slowest
from fulltilt.bench.video.figures import (
    BOTH_AT_LEAST,
    CPU_AT_LEAST,
    NVDEC_AT_LEAST,
    PARTS,
    Case,
    VideoBench,
)
from fulltilt.bench.video.material import LITTLE_GRAIN, LONG_GOP, Material, make_videos, megabits_per_second
from fulltilt.bench.video.opencv import Captures, opencv
from fulltilt.bench.video.rates import Counted, Crew, apart, beside
from fulltilt.bench.video.training import Course, training
from fulltilt.decode.video.limits import sessions_of
from fulltilt.decode.video.reader import Quality
from fulltilt.decode.video.waiting import wait_asleep
from fulltilt.errors import FulltiltError
from fulltilt.machine.cores import read_cores

NO_GPU = "The targets need an NVIDIA GPU and a machine like it: small videos were decoded on the CPU."
_THREADS_TRIED = (1, 2)
"""Of each of the CPU's decoders."""
_SETTLE, _SETTLE_TRAINING = 12.0, 6.0
"""A feed may look for its balance for so many times as long as it is measured; in training it begins near to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How large everything is."""

    material: Material
    device: str
    decoders: int
    engines: int
    """Decoders of the GPU."""
    size: int
    """Height and width of clips."""
    batch: int
    seconds: float
    """Of each measurement."""
    has_targets: bool
    threads: int = 1
    """Of each of the CPU's decoders, once it was found."""
    share: float | None = None
    """The GPU's, of clips, once it was found."""

    @property
    def settle_seconds(self) -> float:
        """How long a feed of clips may look for the GPU's share before it is measured."""
        return _SETTLE * self.seconds if self.has_targets else 0.0


def setting(*, gpu: bool, cores: int, quick: bool, seconds: float | None = None, engines: int = 1) -> Setting:
    """By what there is; targets only for what they were set for."""
    usual = (2.0 if quick else 5.0) if gpu else (0.2 if quick else 2.0)
    material = (
        Material(width=1280, height=720, frames=320, files=16)
        if gpu
        else Material(width=256, height=144, frames=64, files=2)
    )
    return Setting(
        material=material,
        device="cuda:0" if gpu else "cpu",
        decoders=max(1, min(16, cores)),
        engines=engines,
        size=224 if gpu else 64,
        batch=8 if gpu else 4,
        seconds=usual if seconds is None else seconds,
        has_targets=gpu,
    )


def measure(
    *,
    quick: bool,
    only: Sequence[str],
    seconds: float | None = None,
    folder: Path | None = None,
    say: Say,
    keep: Callable[[VideoBench], None] = lambda _: None,
) -> VideoBench:
    """Everything that this machine can run; `say` hears what comes next, `keep` has what there is after each case."""
    began = time.monotonic()
    gpu = torch.cuda.is_available()
    engines = sessions_of(0) if gpu else 1
    chosen = setting(gpu=gpu, cores=read_cores().usable, quick=quick, seconds=seconds, engines=engines)
    run = {
        "cpu": _cpu,
        "light": _light,
        "nvdec": _nvdec,
        "both": _both,
        "clips": _clips,
        "train": _train,
        "long": _long,
    }
    machine = machine_facts({"av": "av", "PyNvVideoCodec": "PyNvVideoCodec"})
    cases: dict[tuple[str, str], Case] = {}
    title = chosen.material.title

    def so_far() -> VideoBench:
        return VideoBench(
            machine=machine,
            date=now(),
            video=title,
            cases=tuple(cases.values()),
            seconds=time.monotonic() - began,
            problem=None if gpu else NO_GPU,
        )

    with tempfile.TemporaryDirectory(prefix="fulltilt-video-", dir=folder) as home:
        say(f"{chosen.material.title}: is made")
        paths = make_videos(Path(home), chosen.material)
        title += f", {megabits_per_second(paths[0], chosen.material):.1f} Mbit/s"
        for part in PARTS:
            if part not in only:
                continue
            for case in run[part](chosen, paths, say):
                cases[case.part, case.key] = case  # one that comes again is better known than before
                keep(so_far())
                chosen = _wiser(chosen, case)
    return so_far()


def _spread(paths: Sequence[Path], count: int) -> list[Path]:
    return list(islice(cycle(paths), count))


def _wiser(chosen: Setting, case: Case) -> Setting:
    """With what a case has found, for those that come after it."""
    if case.key == "cpu":
        return replace(chosen, threads=case.notes.get("threads", chosen.threads))
    if case.key == "nvdec":
        return replace(chosen, engines=case.notes.get("decoders", chosen.engines))
    return replace(chosen, share=case.notes.get("gpu_share")) if case.key == SHARED else chosen


def _cpu(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    qualities: tuple[Quality, ...] = ("exact", "fast")
    for quality in qualities:
        yield from _by_us(chosen, paths, say, quality)
    cv2 = opencv()
    if cv2 is not None:
        yield from (_by_opencv(cv2, chosen, paths, say, alone=alone) for alone in (False, True))


def _light(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """The CPU's once more, from videos with less in them: what a decoder takes depends on the bits."""
    material = replace(chosen.material, grain=LITTLE_GRAIN)
    with tempfile.TemporaryDirectory(prefix="light-", dir=paths[0].parent) as home:
        lighter = make_videos(Path(home), material)
        bits = f"{megabits_per_second(lighter[0], material):.1f} Mbit/s"
        for case in _cpu(chosen, lighter, say):
            yield replace(case, part="light", key=f"{case.key}_light", title=f"{case.title}, {bits}")


def _by_us(chosen: Setting, paths: list[Path], say: Say, quality: Quality) -> Iterator[Case]:
    """The best of several ways: with more threads each, fewer decoders hold their pictures in the caches; in processes
    of their own, as a feed's workers are, none waits for the interpreter lock."""
    exact = quality == "exact"
    case = Case(
        part="cpu",
        key="cpu" if exact else "cpu_fast",
        title=f"CPU, {chosen.decoders} decoders" + ("" if exact else ", quality fast"),
        at_least=CPU_AT_LEAST if chosen.has_targets and exact else None,
    )
    tried: dict[str, int] = {}
    ways = [(threads, 0) for threads in _THREADS_TRIED if threads <= chosen.decoders]
    for threads, processes in (*ways, (1, chosen.decoders)):
        decoders = chosen.decoders // threads
        way = f"{decoders}×{threads}" + (" in processes" if processes else "")
        say(f"cpu: decoders × threads {way}, quality {quality}")
        several = _spread(paths, decoders)
        if processes:
            found = apart(several, chosen.seconds, quality=quality, processes=processes)
        else:
            found = _here(several, chosen.seconds, quality, threads)
        tried[way] = round(found.per_second)
        if found.per_second > (case.per_second or 0.0):
            notes = {"decoders": decoders, "threads": threads, "processes": processes, "cores": round(found.cores, 1)}
            case = replace(case, per_second=found.per_second, notes=notes)
    yield replace(case, notes={**case.notes, "tried": tried})


def _here(paths: list[Path], seconds: float, quality: Quality, threads: int) -> Counted:
    crew = Crew(paths, device=None, quality=quality, threads=threads)
    try:
        return crew.count(seconds)
    finally:
        crew.close()


def _by_opencv(cv2: Any, chosen: Setting, paths: list[Path], say: Say, *, alone: bool) -> Case:
    """The same files as others read them: what a machine's cores can do, without a target."""
    title = f"OpenCV, {chosen.decoders} decoders" + (", one thread each" if alone else "")
    case = Case(part="cpu", key="opencv_alone" if alone else "opencv", title=title)
    say(f"cpu: {title}")
    try:
        crew = Captures(cv2, _spread(paths, chosen.decoders), alone=alone)
        try:
            found = crew.count(chosen.seconds)
        finally:
            crew.close()
    except (FulltiltError, AttributeError, cv2.error) as error:  # an old one can't be told of threads
        return replace(case, problem=said(error))
    notes = {"cores": round(found.cores, 1), "opencv": cv2.__version__}
    return replace(case, per_second=found.per_second, notes=notes)


def _nvdec(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """The best of several numbers of decoders, first as CUDA waits by itself, then asleep."""
    case = Case(
        part="nvdec",
        key="nvdec",
        title="NVDEC, RGB on the device",
        at_least=NVDEC_AT_LEAST if chosen.has_targets else None,
    )
    tried: dict[str, dict[str, float]] = {}
    usual, more = chosen.engines, 2 * chosen.engines
    try:
        crew = Crew(_spread(paths, more), device=chosen.device)
        try:
            for decoders, asleep in ((usual, False), (usual, True), (more, True)):
                refused = wait_asleep(0, asleep=asleep)
                how = "asleep" if asleep and refused is None else "as CUDA does"
                say(f"nvdec: {decoders} decoders, waiting {how}")
                found = crew.count(chosen.seconds, decoders=decoders)
                figures = {"frames_per_second": round(found.per_second), "cores": round(found.cores, 1)}
                tried[f"{decoders}, waiting {how}"] = figures
                if found.per_second > (case.per_second or 0.0):
                    notes = {"decoders": decoders, "cores": figures["cores"], "waiting": how}
                    case = replace(case, per_second=found.per_second, notes=notes)
                yield replace(case, notes={**case.notes, "tried": dict(tried)})
        finally:
            wait_asleep(0, asleep=False)
            crew.close()
    except FulltiltError as error:
        yield replace(case, problem=said(error))


def _both(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """The best of several ways to decode on the CPU meanwhile: feeding the engines takes cores too."""
    case = Case(
        part="both",
        key="both",
        title="CPU and NVDEC together",
        at_least=BOTH_AT_LEAST if chosen.has_targets else None,
    )
    tried: dict[str, int] = {}
    try:
        crew = Crew(_spread(paths, chosen.engines), device=chosen.device)
        try:
            refused = wait_asleep(0)
            threads = chosen.threads
            fewer, all_of_them = max(1, (chosen.decoders - 2) // threads), chosen.decoders // threads
            for decoders, processes in ((fewer, 1), (fewer, fewer), (all_of_them, all_of_them)):
                where = "1 process" if processes == 1 else f"{processes} processes"
                how = f"{decoders}×{threads} of the CPU in {where}, {chosen.engines} of the GPU"
                say(f"both: decoders {how}")
                several = _spread(paths, decoders)
                there, here = beside(several, crew, chosen.seconds, threads=threads, processes=processes)
                rate = there.per_second + here.per_second
                tried[how] = round(rate)
                if rate > (case.per_second or 0.0):
                    notes = {
                        "cpu_decoders": decoders,
                        "cpu_threads": threads,
                        "cpu_processes": processes,
                        "nvdec_decoders": chosen.engines,
                        "waiting": "asleep" if refused is None else f"as CUDA does ({refused})",
                        "cpu_frames_per_second": round(there.per_second),
                        "nvdec_frames_per_second": round(here.per_second),
                        "cpu_cores": round(there.cores, 1),
                        "nvdec_cores": round(here.cores, 1),
                    }
                    case = replace(case, per_second=rate, notes=notes)
                yield replace(case, notes={**case.notes, "tried": dict(tried)})
        finally:
            wait_asleep(0, asleep=False)
            crew.close()
    except FulltiltError as error:
        yield replace(case, problem=said(error))


def _clips(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """From videos with key frames close together."""
    return clips(paths, _ground(chosen), say)


def _long(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    """What takes long, and no target needs: a DataLoader that decodes from the beginning, and clips of videos such as
    encoders make unless told otherwise, where most that is decoded only leads up to a clip."""
    ground = replace(_ground(chosen), part="long")
    yield slowest(paths, ground, say)
    with tempfile.TemporaryDirectory(prefix="long-", dir=paths[0].parent) as home:
        far = make_videos(Path(home), replace(chosen.material, gop=LONG_GOP))
        yield from clips(far, replace(ground, long=True, share=chosen.share), say)


def _ground(chosen: Setting) -> Ground:
    return Ground(
        frames=chosen.material.frames,
        size=chosen.size,
        batch=chosen.batch,
        workers=chosen.decoders,
        device=chosen.device,
        seconds=chosen.seconds,
        settle_seconds=chosen.settle_seconds,
        has_targets=chosen.has_targets,
    )


def _train(chosen: Setting, paths: list[Path], say: Say) -> Iterator[Case]:
    course = Course.large() if chosen.has_targets else Course.small()
    folder = paths[0].parent / "train"
    return training(
        folder,
        course,
        chosen.device,
        chosen.seconds,
        settle_seconds=_SETTLE_TRAINING * chosen.seconds if chosen.has_targets else 0.0,
        has_targets=chosen.has_targets,
        say=say,
    )
